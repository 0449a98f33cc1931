// What follows from the parts of a strategy.
#include "moert/strategy.h"

#include <algorithm>

#include "fmt/format.h"
#include "store/versioned_store.h"

namespace moert {
namespace {

bool Lossy(const Policy* policy) { return policy != nullptr && policy->traits().lossy; }
bool NeedsHost(const Policy* policy) { return policy != nullptr && policy->traits().needs_host; }

}  // namespace

bool Strategy::exact() const {
  // Versions that change and answer for one another are lossy whatever the policies say. Residency
  // and prefetch decide where experts are, never what is computed.
  return serving == Serving::kCache && !Lossy(routing.get()) && !Lossy(precision.get()) &&
         !Lossy(placement.get());
}

bool Strategy::graph_safe() const {
  const bool always_usable =
      preload || serving == Serving::kHotSet || serving == Serving::kLowPlusCache;
  const bool asked_in_layers = routing != nullptr || prefetch != nullptr || placement != nullptr ||
                               NeedsHost(residency.get()) || NeedsHost(precision.get());
  return always_usable && !asked_in_layers;
}

bool Strategy::misses_by_rule() const {
  const bool prefetch_ruled =
      prefetch == nullptr || prefetch->traits().by_gate || prefetch->traits().path_width > 0;
  const bool residency_ruled = residency == nullptr || residency->traits().least_recently_used ||
                               residency->traits().by_worth || residency->traits().by_arc ||
                               residency->traits().score_window > 0;
  const bool routing_ruled = routing == nullptr || routing->traits().rule_by_phase;
  const bool placement_ruled = placement == nullptr || placement->traits().low_patience > 0 ||
                               placement->traits().balance != CpuBalance::kNone;
  const bool cache = serving == Serving::kCache || serving == Serving::kCacheOverLow;
  return cache && !preload && routing_ruled && precision == nullptr && placement_ruled &&
         prefetch_ruled && residency_ruled;
}

absl::Status Strategy::Validate() const {
  const auto invalid = [&](const std::string& why) {
    return absl::InvalidArgumentError(fmt::format("strategy {}: {}", spec, why));
  };
  if (serving == Serving::kCache) return absl::OkStatus();
  if (preload) return invalid("preload is for serving kCache; the others load what they keep");
  const size_t most = serving == Serving::kHotSet ? kMaxVersions : 2;
  if (versions.size() < 2 || versions.size() > most) {
    return invalid(fmt::format("serves {} versions; it must name {}, most bits first",
                               versions.size(), most == 2 ? "two" : "two to four"));
  }
  if (serving == Serving::kHotSet && precision == nullptr) {
    return invalid("serving kHotSet needs a precision policy, which decides who is high");
  }
  if (serving == Serving::kCacheOverLow && placement == nullptr) {
    return invalid("serving kCacheOverLow needs a placement policy, which decides who is low");
  }
  return absl::OkStatus();
}

}  // namespace moert
