#include "moert/rules.h"

#include "absl/strings/string_view.h"
#include "base/errors.h"
#include "fmt/format.h"

namespace moert {
namespace {

template <typename T>
absl::Status Outside(absl::string_view field, T value, absl::string_view legal) {
  return InvalidArgument("{} is {}; must be {}", fmt::string_view(field.data(), field.size()),
                         value, fmt::string_view(legal.data(), legal.size()));
}

/// Checks the number of a kind, as a host may have cast it from an integer.
template <typename Kind>
absl::Status CheckKind(absl::string_view field, Kind kind, Kind last) {
  const auto number = static_cast<int32_t>(kind), most = static_cast<int32_t>(last);
  if (number >= 0 && number <= most) return absl::OkStatus();
  return Outside(field, number, fmt::format("from 0 to {}", most));
}

absl::Status CheckShare(absl::string_view field, double share) {
  return share >= 0 && share <= 1 ? absl::OkStatus() : Outside(field, share, "in [0, 1]");
}

}  // namespace

Promise RoutingRule::promise() const {
  const bool substitutes = kind == RoutingRuleKind::kExpertCache && alpha > 0;
  return substitutes ? Promise::kLossy : Promise::kExact;
}

absl::Status ResidencyRule::Validate() const {
  constexpr int kLongest = 4096;
  absl::Status status = CheckKind("residency rule: kind", kind, ResidencyRuleKind::kAverageScore);
  status.Update(
      CheckKind("residency rule: capacity.kind", capacity.kind, CapacityRuleKind::kMeasured));
  if (!status.ok()) return status;
  if (window < 1 || window > kLongest) {
    return Outside("residency rule: window", window, fmt::format("from 1 to {}", kLongest));
  }
  if (shared_slots && kind != ResidencyRuleKind::kWorth) {
    return absl::InvalidArgumentError(
        "residency rule: shared_slots needs kind kWorth, which compares experts of different "
        "layers");
  }
  if (capacity.shallow < -1) {
    return Outside("residency rule: capacity.shallow", capacity.shallow, "at least -1");
  }
  if (capacity.transient < -1) {
    return Outside("residency rule: capacity.transient", capacity.transient, "at least -1");
  }
  return absl::OkStatus();
}

absl::Status PrefetchRule::Validate() const {
  absl::Status status = CheckKind("prefetch rule: kind", kind, PrefetchRuleKind::kTopScore);
  status.Update(CheckShare("prefetch rule: alpha", alpha));
  if (!status.ok()) return status;
  if (wrap && kind != PrefetchRuleKind::kNextGate) {
    return absl::InvalidArgumentError("prefetch rule: wrap needs kind kNextGate");
  }
  return absl::OkStatus();
}

Promise PlacementRule::promise() const {
  if (low_patience > 0 && max_low_share > 0) return Promise::kLossy;
  return balance == CpuBalance::kNone ? Promise::kExact : Promise::kFaithful;
}

absl::Status PlacementRule::Validate() const {
  absl::Status status = CheckKind("placement rule: balance", balance, CpuBalance::kByCompletion);
  status.Update(CheckShare("placement rule: max_low_share", max_low_share));
  if (!status.ok()) return status;
  if (low_patience == 0 || low_patience >= 1) return absl::OkStatus();
  return Outside("placement rule: low_patience", low_patience, "0, or at least 1");
}

}  // namespace moert
