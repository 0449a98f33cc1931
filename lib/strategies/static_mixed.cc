// static-mixed: two versions like dynaexq, and the high set is given and never changes: mixed
// precision by offline frequency, DynaExq's static baseline. With the set that a stream turns out
// to use most it is the hindsight bound of every static choice.
#include "base/status_macros.h"
#include "strategies/builtin.h"

namespace moert {
namespace {

class GivenHigh final : public PrecisionPolicy {
 public:
  explicit GivenHigh(std::vector<ExpertKey> hot) : hot_(std::move(hot)) {}

  absl::string_view name() const override { return "given"; }

  std::vector<ExpertKey> Initial(const MoeModelSpec&, absl::Span<const int32_t>) override {
    return hot_;
  }

 private:
  const std::vector<ExpertKey> hot_;
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
  MOERT_ASSIGN_OR_RETURN(std::vector<ExpertKey> hot, params.Experts("hot"));
  s.precision = std::make_unique<GivenHigh>(std::move(hot));
  return s;
}

}  // namespace moert
