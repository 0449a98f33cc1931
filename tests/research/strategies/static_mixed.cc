// static-mixed: two versions like dynaexq, and the high set is given and never changes: mixed
// precision by offline frequency (`calibration=`), DynaExq's static baseline. With the set that a
// stream turns out to use most (`hot=`) it is the hindsight bound of every static choice.
#include "base/status_macros.h"
#include "research/strategies/research_strategies.h"
#include "strategies/initial_high.h"

namespace moert {
namespace {

class GivenHigh final : public PrecisionPolicy {
 public:
  explicit GivenHigh(InitialHigh initial) : initial_(std::move(initial)) {}

  absl::StatusOr<PrecisionDecision> Decide(const PrecisionSnapshot& snapshot) override {
    if (snapshot.moment == PrecisionMoment::kOpen) return initial_.Choose(snapshot);
    return PrecisionDecision();
  }

 private:
  const InitialHigh initial_;
};

}  // namespace

absl::StatusOr<Strategy> BuildStaticMixed(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  Strategy s;
  s.serving = Serving::kHotSet;
  s.versions = {params.Text("hi", "bf16"), params.Text("lo", "w4a16_g128")};
  MOERT_ASSIGN_OR_RETURN(s.transitions.hi_fraction, params.Number("hi_fraction", -1, 0, 1));
  // Room to swap when the budget changes.
  s.transitions.spare = 4;
  MOERT_ASSIGN_OR_RETURN(InitialHigh initial, InitialHigh::Make(context));
  s.precision = std::make_unique<GivenHigh>(std::move(initial));
  return s;
}

}  // namespace moert
