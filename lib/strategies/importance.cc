// importance: spends transfers on the experts that matter (importance paper Sec. 5). It routes by
// the expert-cache rule, evicts by average score, prefetches predicted top-score experts and, with
// a CPU beside the fast tier, shares misses between the CPU and the link.
//
// Lossy unless alpha = 0; bounded by max_slots and max_mass, which hold for every request. The
// suggested alpha and what it costs: docs/results/papers.md.
#include <optional>

#include "base/status_macros.h"
#include "plan/placement_rule.h"
#include "prefetch/prefetch_rule.h"
#include "route/expert_cache_rule.h"
#include "route/substitution_ledger.h"
#include "store/residency/cache_policy.h"
#include "store/state_bytes.h"
#include "strategies/builtin.h"

namespace moert {
namespace {

class ExpertCacheRouting final : public RoutingPolicy {
 public:
  ExpertCacheRouting(const RoutingRule& rule, bool decode_only)
      : rule_(rule), decode_only_(decode_only) {}

  int64_t StateBytes(const PolicyScope& scope) const override {
    // The rule's view of each token, with two lists of slots.
    constexpr int64_t kToken = 192;
    return AccountBytes(scope) + scope.max_tokens * kToken +
           PerPair(scope, kGrowth * 2 * int64_t{sizeof(int)}) + PerLayerExpert(scope, 32);
  }

  absl::Status Check(const MoeModelSpec& model) const override {
    for (const MoeLayerSpec& layer : model.layers) {
      MOERT_RETURN_IF_ERROR(CheckExpertCacheRule(layer.routing));
    }
    return absl::OkStatus();
  }

  std::optional<RoutingRule> PhaseRule(Phase phase) const override {
    return decode_only_ && phase != Phase::kDecode ? RoutingRule{} : rule_;
  }

 private:
  const RoutingRule rule_;
  const bool decode_only_;
};

}  // namespace

std::unique_ptr<RoutingPolicy> MakeExpertCacheRouting(double alpha, double max_mass_share) {
  RoutingRule rule;
  rule.kind = RoutingRuleKind::kExpertCache;
  rule.alpha = static_cast<float>(alpha);
  rule.max_mass_share = static_cast<float>(max_mass_share);
  return std::make_unique<ExpertCacheRouting>(rule, /*decode_only=*/true);
}

absl::StatusOr<Strategy> BuildImportance(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  Strategy strategy;
  if (params.Has("scheme")) strategy.versions = {params.Text("scheme", "")};
  RoutingRule rule;
  rule.kind = RoutingRuleKind::kExpertCache;
  MOERT_ASSIGN_OR_RETURN(const double alpha, params.Number("alpha", 0.1, 0, 1));
  MOERT_ASSIGN_OR_RETURN(const int phase, params.OneOf("phase", 0, {"decode", "all"}));
  MOERT_ASSIGN_OR_RETURN(rule.second_pass, params.Flag("second_pass", false));
  MOERT_ASSIGN_OR_RETURN(const double slots, params.Number("max_slots", 1, 0, 1));
  MOERT_ASSIGN_OR_RETURN(const double mass, params.Number("max_mass", 1, 0, 1));
  MOERT_ASSIGN_OR_RETURN(const int weights, params.OneOf("weights", 0, {"own", "displaced"}));
  MOERT_ASSIGN_OR_RETURN(const int predict, params.OneOf("predict", 0, {"forward", "gate"}));
  MOERT_ASSIGN_OR_RETURN(const int64_t window, params.Integer("n", 64, 1, 4096));
  rule.alpha = static_cast<float>(alpha);
  rule.max_slot_share = static_cast<float>(slots);
  rule.max_mass_share = static_cast<float>(mass);
  rule.own_score_weights = weights == 0;
  const bool in_turns = params.Text("cpu", "") == "turns";
  bool shares = in_turns;
  if (!in_turns) {
    MOERT_ASSIGN_OR_RETURN(shares, SharesMisses(context, true));
  }
  MOERT_ASSIGN_OR_RETURN(const bool fill, params.Flag("fill", shares && !in_turns));
  MOERT_ASSIGN_OR_RETURN(strategy.prefetch_control, params.Flag("control", true));
  strategy.routing = std::make_unique<ExpertCacheRouting>(rule, phase == 0);
  strategy.prefetch = MakePrefetchPolicy(
      {.kind = PrefetchRuleKind::kTopScore, .alpha = rule.alpha, .resident_forward = predict == 0});
  strategy.residency = MakeCachePolicy(
      {.kind = ResidencyRuleKind::kAverageScore, .window = static_cast<int>(window)});
  if (shares) {
    strategy.placement = MakePlacementPolicy(
        {.balance = in_turns ? CpuBalance::kInTurns : CpuBalance::kByCompletion,
         .backfills = fill});
  }
  return strategy;
}

}  // namespace moert
