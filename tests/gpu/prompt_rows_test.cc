// Prompts in bf16, which the products read where the host has them, against the same numbers in
// fp32, which are rounded first.
#include <cstring>
#include <vector>

#include "base/bf16.h"
#include "device_array.h"
#include "moert/engine.h"
#include "tests/support/catch.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

constexpr int64_t kRows = 80;

/// The outputs of a layer.
std::vector<float> Run(Engine* engine, const void* x, DType dtype, int64_t stride) {
  const int64_t hidden = engine->model().layers[0].hidden;
  const DeviceArray<float> y(static_cast<size_t>(kRows * hidden));
  StepInfo info;
  info.phase = Phase::kPrefill;
  info.rows = kRows;
  auto step = engine->BeginStep(info);
  REQUIRE_OK(step.status());
  REQUIRE_OK(engine->Forward(*step, 0, {const_cast<void*>(x), dtype, kRows, hidden, stride},
                             {y.get(), DType::kF32, kRows, hidden, hidden}));
  REQUIRE_OK(engine->EndStep(*step));
  return y.Get();
}

TEST_CASE("rows of bf16 give what the same rows of fp32 do, wherever they lie") {
  for (const int64_t hidden : {int64_t{128}, int64_t{96}}) {  // whole 64s, and not
    SyntheticShape shape;
    shape.layers = 1;
    shape.hidden = hidden;
    const auto source = std::make_shared<SyntheticSource>(shape);
    EngineOptions options;
    options.backend = BackendKind::kCuda;
    options.strategy = "resident";
    options.budget = Budget::Fraction(1);
    options.max_tokens_per_forward = kRows;
    auto engine = Engine::Create(source, options);
    REQUIRE_OK(engine.status());
    std::mt19937 rng(9);
    const std::vector<uint16_t> x = Rounded(RandomFloats(kRows * hidden, &rng));
    const DeviceArray<float> wide(Widened(x));
    const std::vector<float> want = Run(engine->get(), wide.get(), DType::kF32, hidden);
    for (const int64_t stride : {hidden, hidden + 8, hidden + 4, hidden + 1}) {
      for (const int64_t offset : {0, 8, 1}) {
        // Padding is no number, so that whoever reads it shows it.
        std::vector<uint16_t> spread(kRows * stride + offset + 64, 0xffff);
        for (int64_t r = 0; r < kRows; ++r) {
          std::memcpy(spread.data() + offset + r * stride, x.data() + r * hidden, hidden * 2);
        }
        const DeviceArray<uint16_t> rows(spread);
        const std::vector<float> got =
            Run(engine->get(), rows.get() + offset, DType::kBF16, stride);
        INFO("hidden " << hidden << ", stride " << stride << ", offset " << offset);
        CHECK(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) == 0);
      }
    }
  }
}

}  // namespace
}  // namespace moert::test
