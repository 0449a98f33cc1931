// dynaexq:versions=: a plan that changes at run time. Every expert is resident in one of several
// versions, which is chosen as for a static plan (MxMoE Sec. 4): the least loss for the bytes. A
// calibration gives the loss of each use of an expert in each version. It also gives the frequency
// of use at first; later the frequency is measured (DynaExq Sec. 4.2).
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_split.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "store/state_bytes.h"
#include "strategies/builtin.h"
#include "strategies/hotness.h"
#include "strategies/routing_statistics.h"
#include "strategies/rung_choice.h"

namespace moert {
namespace {

class MovingPlanPolicy final : public PrecisionPolicy {
 public:
  /// How far an expert's use may be from its estimate. Within these bounds the expert stays.
  struct Doubt {
    double margin;  // share of the estimate
    double noise;   // standard deviations of the counting noise
  };

  MovingPlanPolicy(RoutingStatistics calibration, std::vector<double> loss, Hotness hotness,
                   Doubt doubt)
      : calibration_(std::move(calibration)),
        loss_(std::move(loss)),
        hotness_(std::move(hotness)),
        doubt_(doubt) {}

  int64_t StateBytes(const PolicyScope& scope) const override {
    // The steps of up to four versions, their losses, and lists of experts.
    constexpr int64_t kExpert = Hotness::kBytesPerExpert + 4 * sizeof(double) +
                                RungChoice::kBytesPerExpert +
                                kGrowth * (sizeof(UseBand) + sizeof(Move) + 2 * sizeof(ExpertKey));
    return PerExpert(scope, kExpert) + StatisticsBytes(calibration_);
  }

  absl::StatusOr<PrecisionDecision> Decide(const PrecisionSnapshot& snapshot) override {
    if (snapshot.moment == PrecisionMoment::kOpen) {
      MOERT_RETURN_IF_ERROR(CheckSameModel(calibration_, *snapshot.context.model));
      if (snapshot.bytes.size() != loss_.size()) {
        return absl::InvalidArgumentError(
            "strategy dynaexq: with versions= its precision policy chooses among these, three or "
            "four: take all of the strategy, not this seam in another that keeps two");
      }
      const auto versions = static_cast<int>(loss_.size() / snapshot.high.size());
      choice_ = std::make_unique<RungChoice>(loss_, snapshot.bytes, versions);
    }
    const bool sure = snapshot.moment == PrecisionMoment::kOpen;
    if (snapshot.moment == PrecisionMoment::kInterval) hotness_.Add(snapshot.selections);
    uses_.clear();
    for (const double use : hotness_.values()) {
      const double doubt = sure ? 0 : doubt_.margin * use + doubt_.noise * hotness_.Scatter(use);
      uses_.push_back({std::max(0.0, use - doubt), use + doubt});
    }
    return Transitions(snapshot, choice_->Choose(uses_, snapshot.high, snapshot.capacity_bytes));
  }

 private:
  struct Move {
    double gain;
    ExpertKey key;
    int by;  // rungs
  };

  /// Promotions with the largest gain first, demotions with the smallest loss first, because the
  /// rate of transitions is limited.
  PrecisionDecision Transitions(const PrecisionSnapshot& snapshot,
                                const std::vector<uint8_t>& rungs) {
    moves_.clear();
    const size_t versions = loss_.size() / rungs.size();
    size_t i = 0;
    for (int32_t l = 0; l < snapshot.context.model->num_layers(); ++l) {
      for (int32_t e = 0; e < snapshot.context.model->layers[l].num_experts; ++e, ++i) {
        if (rungs[i] == snapshot.high[i]) continue;
        const double* lowest = &loss_[i * versions + versions - 1];
        const double saved = *(lowest - snapshot.high[i]) - *(lowest - rungs[i]);
        moves_.push_back({hotness_.values()[i] * saved, {l, e}, rungs[i] - snapshot.high[i]});
      }
    }
    std::stable_sort(moves_.begin(), moves_.end(),
                     [](const Move& a, const Move& b) { return a.gain > b.gain; });
    PrecisionDecision decision;
    for (const Move& move : moves_) {
      std::vector<ExpertKey>& list = move.by > 0 ? decision.promote : decision.demote;
      list.insert(list.end(), static_cast<size_t>(std::abs(move.by)), move.key);
    }
    return decision;
  }

  const RoutingStatistics calibration_;
  const std::vector<double> loss_;  // [expert][version], loss of one use
  Hotness hotness_;
  const Doubt doubt_;
  std::unique_ptr<RungChoice> choice_;  // made at open, when the bytes of versions are known
  std::vector<UseBand> uses_;           // scratch, as are
  std::vector<Move> moves_;
};

}  // namespace

absl::StatusOr<Strategy> BuildMovingPlan(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  MOERT_RETURN_IF_ERROR(RefuseKeys("dynaexq", params, {"hi", "lo", "rank", "slack", "hot"},
                                   "versions=, where loss and use choose among all"));
  Strategy s;
  s.serving = Serving::kHotSet;
  s.versions = absl::StrSplit(params.Text("versions", ""), '/');
  if (s.versions.size() < 3 || s.versions.size() > 4) {
    return InvalidArgument(
        "strategy dynaexq: versions={} names {}: it takes three or four, most bits first, as in "
        "w8a16_g128/w4a16_g128/w2a16_g64_asym; of two, give hi= and lo=",
        fmt::join(s.versions, "/"), s.versions.size());
  }
  if (context.calibration == nullptr) {
    return absl::InvalidArgumentError(
        "strategy dynaexq: versions= needs calibration=FILE of `moert-pack calibrate`, which says "
        "what each version costs");
  }
  MOERT_ASSIGN_OR_RETURN(s.transitions, ReadTransitions(params));
  MOERT_ASSIGN_OR_RETURN(const double margin, params.Number("margin", 0.1, 0, 1));
  MOERT_ASSIGN_OR_RETURN(const double noise, params.Number("noise", 0.5, 0, 1e9));
  MOERT_ASSIGN_OR_RETURN(std::vector<double> loss,
                         LossPerSelection(*context.calibration, s.versions));
  MOERT_ASSIGN_OR_RETURN(Hotness hotness, ReadHotness(context));
  s.precision =
      std::make_unique<MovingPlanPolicy>(*context.calibration, std::move(loss), std::move(hotness),
                                         MovingPlanPolicy::Doubt{margin, noise});
  return s;
}

}  // namespace moert
