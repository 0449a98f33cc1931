// Properties of a strategy that are derived from its parts.
#include "moert/strategy.h"

#include <algorithm>

#include "base/errors.h"
#include "fmt/format.h"
#include "plan/placement_rule.h"
#include "store/versioned_store.h"

namespace moert {
namespace {

bool NeedsHost(const Policy* policy) { return policy != nullptr && policy->traits().needs_host; }

/// Whether a policy's rule depends on the phase alone.
bool Ruled(const RoutingPolicy* policy) {
  return policy == nullptr || (policy->PhaseRule(Phase::kPrefill).has_value() &&
                               policy->PhaseRule(Phase::kDecode).has_value());
}
template <typename PolicyWithRule>
bool Ruled(const PolicyWithRule* policy) {
  return policy == nullptr || policy->rule().has_value();
}

Promise PromiseOf(const RoutingPolicy* policy) {
  if (policy == nullptr) return Promise::kExact;
  if (!Ruled(policy)) return policy->traits().promise;
  return std::max(policy->PhaseRule(Phase::kPrefill)->promise(),
                  policy->PhaseRule(Phase::kDecode)->promise());
}
Promise PromiseOf(const PrecisionPolicy* policy) {
  return policy == nullptr ? Promise::kExact : policy->traits().promise;
}

template <typename PolicyWithRule>
absl::Status ValidateRule(const PolicyWithRule* policy) {
  if (policy == nullptr || !policy->rule().has_value()) return absl::OkStatus();
  return policy->rule()->Validate();
}

}  // namespace

Promise Strategy::promise() const {
  if (serving != Serving::kCache) return Promise::kLossy;
  return std::max(
      {PromiseOf(routing.get()), PromiseOf(precision.get()), PromiseOf(placement.get())});
}

bool Strategy::graph_safe() const {
  const bool always_usable =
      preload || serving == Serving::kHotSet || serving == Serving::kLowPlusCache;
  const bool asked_in_layers = routing != nullptr || prefetch != nullptr || placement != nullptr ||
                               NeedsHost(residency.get()) || NeedsHost(precision.get());
  return always_usable && !asked_in_layers;
}

bool Strategy::misses_by_rule() const {
  const bool cache = serving == Serving::kCache || serving == Serving::kCacheOverLow;
  // Only a host can predict the first layer of the next step.
  const bool wraps = prefetch != nullptr && prefetch->rule().value_or(PrefetchRule{}).wrap;
  return cache && !preload && precision == nullptr && !wraps && Ruled(routing.get()) &&
         Ruled(prefetch.get()) && Ruled(residency.get()) && Ruled(placement.get());
}

absl::Status Strategy::Validate() const {
  const auto invalid = [&](const std::string& why) {
    return InvalidArgument("strategy {}: {}", spec, why);
  };
  absl::Status rules = ValidateRule(prefetch.get());
  rules.Update(ValidateRule(residency.get()));
  rules.Update(ValidateRule(placement.get()));
  if (!rules.ok()) return invalid(std::string(rules.message()));
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
