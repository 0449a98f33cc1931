#include <memory>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "guard.h"
#include "plan/placement_rule.h"
#include "policy_seams.h"
#include "prefetch/prefetch_rule.h"
#include "store/residency/cache_policy.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

static_assert(static_cast<int32_t>(PrefetchRuleKind::kTopScore) == MOERT_PREFETCH_TOP_SCORE);
static_assert(static_cast<int32_t>(ResidencyRuleKind::kWorth) == MOERT_LEAST_WORTH);
static_assert(static_cast<int32_t>(ResidencyRuleKind::kAverageScore) == MOERT_LEAST_AVERAGE_SCORE);
static_assert(static_cast<int32_t>(CapacityRuleKind::kShallowFirst) ==
              MOERT_CAPACITY_SHALLOW_FIRST);
static_assert(static_cast<int32_t>(CapacityRuleKind::kMeasured) == MOERT_CAPACITY_MEASURED);
static_assert(static_cast<int32_t>(CpuBalance::kInTurns) == MOERT_CPU_BALANCE_IN_TURNS);
static_assert(static_cast<int32_t>(CpuBalance::kByCompletion) == MOERT_CPU_BALANCE_BY_COMPLETION);

constexpr auto kPrefetchFields = [](auto& c, auto& rule, const auto& visit) {
  visit(c.kind, rule.kind);
  visit(c.wrap, rule.wrap);
  visit(c.alpha, rule.alpha);
  visit(c.resident_forward, rule.resident_forward);
};
constexpr auto kResidencyFields = [](auto& c, auto& rule, const auto& visit) {
  visit(c.kind, rule.kind);
  visit(c.window, rule.window);
  visit(c.shared_slots, rule.shared_slots);
  visit(c.capacity, rule.capacity.kind);
  visit(c.shallow, rule.capacity.shallow);
  visit(c.transient, rule.capacity.transient);
};
constexpr auto kPlacementFields = [](auto& c, auto& rule, const auto& visit) {
  visit(c.balance, rule.balance);
  visit(c.backfills, rule.backfills);
  visit(c.max_low_share, rule.max_low_share);
  visit(c.low_patience, rule.low_patience);
  visit(c.spares_low, rule.spares_low);
};

/// A host's rules; each is asked once.
class HostRules final : Adapter {
 public:
  using Adapter::Adapter;

  /// The host's rule if it gives one, starting from the rule of `own`.
  template <typename Rule, typename C, typename Fields, typename OwnPolicy>
  std::optional<Rule> Ask(moert_code (*member)(void*, C*), const Fields& fields,
                          const OwnPolicy* own) const {
    C rule = MakeC<C>(fields, own == nullptr ? Rule{} : own->rule().value_or(Rule{}));
    if (!Decided(member, [&] { return member(c().user_data, &rule); })) return std::nullopt;
    return MakeCpp<Rule>(fields, rule);
  }
};

absl::Status Beside(const char* rule, const char* member) {
  return Illegal("policies: ", rule, " and ", member, " decide the same; give one of them");
}

absl::Status CheckMembers(const moert_policies& c) {
  if (c.prefetch_rule != nullptr && c.prefetch_rank != nullptr) {
    return Beside("prefetch_rule", "prefetch_rank");
  }
  if (c.placement_rule != nullptr && (c.placement != nullptr || c.placement_backfills != nullptr)) {
    return Beside("placement_rule", c.placement != nullptr ? "placement" : "placement_backfills");
  }
  if (c.residency_rule == nullptr) return absl::OkStatus();
  const std::pair<const char*, bool> members[] = {
      {"observe", c.observe != nullptr},
      {"residency_capacity", c.residency_capacity != nullptr},
      {"residency_wants_capacity", c.residency_wants_capacity != nullptr},
      {"residency_victim", c.residency_victim != nullptr},
      {"residency_insert", c.residency_insert != nullptr},
      {"residency_evict", c.residency_evict != nullptr}};
  for (const auto& [name, given] : members) {
    if (given) return Beside("residency_rule", name);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status InstallRules(const std::shared_ptr<HostPolicies>& policies, Strategy* strategy) {
  const moert_policies& c = policies->c;
  MOERT_RETURN_IF_ERROR(CheckMembers(c));
  const HostRules host(policies);
  if (const auto rule =
          host.Ask<PrefetchRule>(c.prefetch_rule, kPrefetchFields, strategy->prefetch.get())) {
    MOERT_RETURN_IF_ERROR(rule->Validate());
    strategy->prefetch = MakePrefetchPolicy(*rule);
  }
  if (const auto rule =
          host.Ask<ResidencyRule>(c.residency_rule, kResidencyFields, strategy->residency.get())) {
    MOERT_RETURN_IF_ERROR(rule->Validate());
    strategy->residency = MakeCachePolicy(*rule);
  }
  if (const auto rule =
          host.Ask<PlacementRule>(c.placement_rule, kPlacementFields, strategy->placement.get())) {
    MOERT_RETURN_IF_ERROR(rule->Validate());
    strategy->placement = MakePlacementPolicy(*rule);
  }
  return absl::OkStatus();
}

}  // namespace moert::capi
