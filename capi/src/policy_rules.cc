#include <memory>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "guard.h"
#include "plan/placement_rule.h"
#include "policy_seams.h"
#include "prefetch/prefetch_rule.h"
#include "store/residency/cache_policy.h"

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

moert_prefetch_rule ToC(const PrefetchRule& rule) {
  moert_prefetch_rule c{};
  c.struct_size = sizeof(c);
  c.kind = static_cast<moert_prefetch_kind>(rule.kind);
  c.wrap = rule.wrap;
  c.alpha = rule.alpha;
  c.resident_forward = rule.resident_forward;
  return c;
}
PrefetchRule FromC(const moert_prefetch_rule& c) {
  return {.kind = static_cast<PrefetchRuleKind>(c.kind),
          .wrap = c.wrap != 0,
          .alpha = c.alpha,
          .resident_forward = c.resident_forward != 0};
}

moert_residency_rule ToC(const ResidencyRule& rule) {
  moert_residency_rule c{};
  c.struct_size = sizeof(c);
  c.kind = static_cast<moert_residency_kind>(rule.kind);
  c.window = rule.window;
  c.shared_slots = rule.shared_slots;
  c.capacity = static_cast<moert_capacity_kind>(rule.capacity.kind);
  c.shallow = rule.capacity.shallow;
  c.transient = rule.capacity.transient;
  return c;
}
ResidencyRule FromC(const moert_residency_rule& c) {
  return {.kind = static_cast<ResidencyRuleKind>(c.kind),
          .window = c.window,
          .shared_slots = c.shared_slots != 0,
          .capacity = {.kind = static_cast<CapacityRuleKind>(c.capacity),
                       .shallow = c.shallow,
                       .transient = c.transient}};
}

moert_placement_rule ToC(const PlacementRule& rule) {
  moert_placement_rule c{};
  c.struct_size = sizeof(c);
  c.balance = static_cast<moert_cpu_balance>(rule.balance);
  c.backfills = rule.backfills;
  c.max_low_share = rule.max_low_share;
  c.low_patience = rule.low_patience;
  c.spares_low = rule.spares_low;
  return c;
}
PlacementRule FromC(const moert_placement_rule& c) {
  return {.balance = static_cast<CpuBalance>(c.balance),
          .backfills = c.backfills != 0,
          .max_low_share = c.max_low_share,
          .low_patience = c.low_patience,
          .spares_low = c.spares_low != 0};
}

/// Rules of a host, asked once.
class HostRules final : Adapter {
 public:
  using Adapter::Adapter;

  /// The host's answer where it has one, from that of `own`.
  template <typename Rule, typename Member, typename OwnPolicy>
  std::optional<Rule> Ask(Member member, const OwnPolicy* own) const {
    auto rule = ToC(own == nullptr ? Rule{} : own->rule().value_or(Rule{}));
    if (!Decided(member, [&] { return member(c().user_data, &rule); })) return std::nullopt;
    return FromC(rule);
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
  if (const auto rule = host.Ask<PrefetchRule>(c.prefetch_rule, strategy->prefetch.get())) {
    MOERT_RETURN_IF_ERROR(rule->Validate());
    strategy->prefetch = MakePrefetchPolicy(*rule);
  }
  if (const auto rule = host.Ask<ResidencyRule>(c.residency_rule, strategy->residency.get())) {
    MOERT_RETURN_IF_ERROR(rule->Validate());
    strategy->residency = MakeCachePolicy(*rule);
  }
  if (const auto rule = host.Ask<PlacementRule>(c.placement_rule, strategy->placement.get())) {
    MOERT_RETURN_IF_ERROR(rule->Validate());
    strategy->placement = MakePlacementPolicy(*rule);
  }
  return absl::OkStatus();
}

}  // namespace moert::capi
