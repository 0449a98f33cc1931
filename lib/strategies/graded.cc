// graded: how much a miss matters decides its precision (importance paper Sec. 5, DynaExq Sec. 4,
// composed). A miss whose routing weight is low is answered by the expert's low version, which
// stands by or is brought in its fewer bytes; one that matters waits for the high version, or is
// computed by a CPU where that is done earlier. What may be lost is the host's: `loss`, the
// share of each request's routing mass that is answered low or substituted. The planner keeps to
// it, whatever this policy answers. All of this is a rule, and a device that serves misses goes by
// it.
#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "rules/low_answers.h"
#include "strategies/builtin.h"
#include "strategies/calibrated_gate.h"
#include "strategies/capacity.h"
#include "strategies/worth_cache.h"

namespace moert {
namespace {

/// Whether a miss is answered low. `decode`: of such a call, others wait.
bool AnsweredLow(const MissView& miss, bool decode, double patience) {
  return decode && WorthAnsweringLow(miss.low_cost, patience);
}

/// All others are loaded.
class GradedByRule final : public PlacementPolicy {
 public:
  GradedByRule(double loss, double patience) : loss_(loss), patience_(patience) {}

  PolicyTraits traits() const override {
    PolicyTraits traits;
    traits.lossy = loss_ > 0;
    traits.max_low_share = loss_;
    traits.low_patience = patience_;
    return traits;
  }

  PlacementDecision Place(const PlacementSnapshot& snapshot) override {
    const bool decode = snapshot.context.phase == Phase::kDecode;
    PlacementDecision decision;
    for (const MissView& miss : snapshot.misses) {
      const bool low = AnsweredLow(miss, decode, patience_);
      decision.placements.push_back(low ? Placement::kLow : Placement::kLoad);
    }
    // What was answered low is brought behind the call, where the link is idle and it is worth it.
    decision.backfill = decode ? Backfill::kAlways : Backfill::kNever;
    return decision;
  }

 private:
  const double loss_;
  const double patience_;
};

class GradedPlacement final : public PlacementPolicy {
 public:
  GradedPlacement(double loss, double patience, bool at_once, const CpuBalanceOptions& balance)
      : loss_(loss),
        patience_(patience),
        at_once_(at_once),
        balancer_(MakeCpuLoadBalancer(balance)) {}

  PolicyTraits traits() const override {
    PolicyTraits traits = balancer_->traits();
    traits.max_low_share = loss_;
    traits.low_patience = patience_;
    return traits;
  }

  PlacementDecision Place(const PlacementSnapshot& snapshot) override {
    rest_.clear();
    where_.clear();
    PlacementDecision decision;
    decision.placements.assign(snapshot.misses.size(), Placement::kLoad);
    const bool decode = snapshot.context.phase == Phase::kDecode;
    for (size_t i = 0; i < snapshot.misses.size(); ++i) {
      const MissView& miss = snapshot.misses[i];
      // A CPU that is earlier than the high version loses nothing, and a low version that has to
      // be brought is not earlier by much.
      const bool spared = !at_once_ && miss.cpu_ns >= 0 && miss.cpu_ns < miss.load_ns;
      if (!spared && AnsweredLow(miss, decode, patience_)) {
        decision.placements[i] = Placement::kLow;
      } else {
        rest_.push_back(miss);
        where_.push_back(i);
      }
    }
    PlacementSnapshot rest = snapshot;
    rest.misses = rest_;
    const PlacementDecision balanced = balancer_->Place(rest);
    for (size_t i = 0; i < where_.size(); ++i) {
      decision.placements[where_[i]] = balanced.placements[i];
    }
    // What was answered low is brought behind the call, where the link is idle and it is worth it.
    decision.backfill = decode ? Backfill::kAlways : balanced.backfill;
    return decision;
  }

 private:
  const double loss_;
  const double patience_;
  const bool at_once_;  // low versions stand by
  const std::unique_ptr<PlacementPolicy> balancer_;
  std::vector<MissView> rest_;  // scratch
  std::vector<size_t> where_;
};

}  // namespace

absl::StatusOr<Strategy> BuildGraded(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  MOERT_ASSIGN_OR_RETURN(const bool wait, params.Flag("wait", true));
  if (!wait) return BuildNeverStall(params);
  MOERT_RETURN_IF_ERROR(
      RefuseKeys("graded", params, {"max_gbps", "n", "margin"}, "wait=1; they are of wait=0"));
  Strategy s;
  MOERT_ASSIGN_OR_RETURN(const bool standby, params.Flag("standby", false));
  s.serving = standby ? Serving::kCacheOverLow : Serving::kCache;
  s.versions = {params.Text("hi", "bf16"), params.Text("lo", "w2a16_g64_asym")};
  MOERT_ASSIGN_OR_RETURN(const double loss, params.Number("loss", 0.05, 0, 1));
  MOERT_ASSIGN_OR_RETURN(const double patience, params.Number("patience", 16, 1, 1e6));
  MOERT_ASSIGN_OR_RETURN(const double alpha, params.Number("alpha", 0.3, 0, 1));
  MOERT_ASSIGN_OR_RETURN(const double substituted, params.Number("substituted", 0.7, 0, 1));
  MOERT_ASSIGN_OR_RETURN(s.prefetch_control, params.Flag("control", true));
  const double to_substitutes = alpha > 0 ? substituted * loss : 0;
  if (alpha > 0) s.routing = MakeExpertCacheRouting(alpha, to_substitutes);
  s.prefetch = MakeCalibratedGate(/*wrap=*/false);
  MOERT_ASSIGN_OR_RETURN(const int64_t transient, params.Integer("transient", -1, 0, 1 << 20));
  s.residency = params.Has("transient")
                    ? MakeWorthCache(MakeMeasuredCapacity(static_cast<int>(transient)))
                    : MakeSharedWorthCache();
  MOERT_ASSIGN_OR_RETURN(const int balancer, params.OneOf("balancer", 1, {"0", "completion"}));
  if (balancer == 0) {
    s.placement = std::make_unique<GradedByRule>(loss - to_substitutes, patience);
  } else {
    s.placement = std::make_unique<GradedPlacement>(loss - to_substitutes, patience, standby,
                                                    CpuBalanceOptions{true, true});
  }
  return s;
}

}  // namespace moert
