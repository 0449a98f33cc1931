// static-mixed: two versions like dynaexq, and the high set is given and never changes: mixed
// precision by offline frequency (`calibration=`), DynaExq's static baseline. With the set that a
// stream turns out to use most (`hot=`) it is the hindsight bound of every static choice.
#include "base/status_macros.h"
#include "strategies/builtin.h"
#include "strategies/initial_high.h"

namespace moert {
namespace {

class GivenHigh final : public PrecisionPolicy {
 public:
  explicit GivenHigh(InitialHigh initial) : initial_(std::move(initial)) {}

  absl::string_view name() const override { return "given"; }

  absl::StatusOr<std::vector<ExpertKey>> Initial(const MoeModelSpec& model,
                                                 absl::Span<const int32_t> capacity) override {
    return initial_.Choose(model, capacity);
  }

 private:
  const InitialHigh initial_;
};

}  // namespace

absl::StatusOr<Strategy> BuildStaticMixed(const Params& params) {
  Strategy s;
  s.serving = Serving::kHotSet;
  s.exact = false;
  s.graph_safe = true;
  s.versions = {params.Text("hi", "bf16"), params.Text("lo", "w4a16_g128")};
  MOERT_ASSIGN_OR_RETURN(s.transitions.hi_fraction, params.Number("hi_fraction", -1, 0, 1));
  // Room to swap when the budget changes.
  s.transitions.spare = 4;
  MOERT_ASSIGN_OR_RETURN(InitialHigh initial, InitialHigh::FromParams(params));
  s.precision = std::make_unique<GivenHigh>(std::move(initial));
  return s;
}

}  // namespace moert
