// Every MoE block of the bundled model, computed by the engine, against the inputs and outputs that
// the reference implementation recorded.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "moert/engine.h"
#include "moert/mixed_group_gemm.h"
#include "moert/offline/checkpoint.h"
#include "moert/source/expert_source.h"
#include "support/catch.h"
#include "support/temp_dir.h"
#include "support/tiny_model.h"

namespace moert {
namespace {

constexpr int64_t kRows = 256, kHidden = 128;

// Root mean square of the error over that of the reference, for the worst layer.
double WorstError(const Checkpoint& recorded, const std::shared_ptr<const ExpertSource>& source,
                  ActivationNumerics numerics, const std::string& kernels, int64_t rows_a_step) {
  EngineOptions options;
  options.budget = Budget::Fraction(0.25);
  options.activation = numerics;
  options.kernels = kernels;
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  double worst = 0.0;
  std::vector<std::vector<float>> in, want;
  for (int l = 0; l < (*engine)->model().num_layers(); ++l) {
    const std::string name = "layers." + std::to_string(l) + ".";
    in.push_back(*recorded.ReadF32(name + "gate_input", {kRows, kHidden}));
    want.push_back(*recorded.ReadF32(name + "moe_output", {kRows, kHidden}));
  }
  std::vector<double> error(in.size()), size(in.size());
  for (int64_t row = 0; row < kRows; row += rows_a_step) {
    const auto step =
        (*engine)->BeginStep({rows_a_step == 1 ? Phase::kDecode : Phase::kPrefill, rows_a_step});
    REQUIRE_OK(step.status());
    std::vector<float> out(rows_a_step * kHidden);
    for (size_t l = 0; l < in.size(); ++l) {
      REQUIRE_OK(
          (*engine)->Forward(*step, static_cast<int>(l),
                             {&in[l][row * kHidden], DType::kF32, rows_a_step, kHidden, kHidden},
                             {out.data(), DType::kF32, rows_a_step, kHidden, kHidden}));
      for (size_t i = 0; i < out.size(); ++i) {
        const double reference = want[l][row * kHidden + i];
        error[l] += (out[i] - reference) * (out[i] - reference);
        size[l] += reference * reference;
      }
    }
    REQUIRE_OK((*engine)->EndStep(*step));
  }
  for (size_t l = 0; l < in.size(); ++l) worst = std::max(worst, std::sqrt(error[l] / size[l]));
  REQUIRE((*engine)->stats().peak_bytes <= (*engine)->stats().budget_bytes);
  return worst;
}

TEST_CASE("MoE blocks equal the recorded ones, for every kernel set of this machine") {
  const auto recorded = Checkpoint::Open(EvalDir() + "/moe_io_wikitext2_256.safetensors");
  REQUIRE_OK(recorded.status());
  const test::TempDir cache;
  OpenModelOptions open;
  open.cache_dir = cache.path();
  auto opened = OpenModel(TinyModelDir(), open);
  REQUIRE_OK(opened.status());
  const std::shared_ptr<const ExpertSource> source = *std::move(opened);
  for (const std::string& kernels : MixedGroupGemm::KernelNames()) {
    INFO(kernels);
    for (const int64_t rows : {int64_t{1}, int64_t{32}, kRows}) {
      CHECK(WorstError(**recorded, source, ActivationNumerics::kF32, kernels, rows) < 2e-6);
      // bf16 keeps 8 bits: 2^-9 relative a rounding, of inputs and of the hidden products.
      const double bf16 = WorstError(**recorded, source, ActivationNumerics::kBF16, kernels, rows);
      CHECK(bf16 < 4e-3);
      CHECK(bf16 > 1e-4);  // else the options did not reach the kernels
    }
  }
}

}  // namespace
}  // namespace moert
