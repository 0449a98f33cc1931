// Host memory that cannot be pinned: what has no place is staged, the results are the same, and the
// host is told.
#include <cstring>
#include <string>

#include "device_step.h"
#include "exec/cuda/cuda_api.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

constexpr int64_t kRows = 4;

std::vector<float> Drive(Engine* engine, int64_t hidden) {
  HiddenProcess process(hidden, 7);
  DeviceRowsBuffer device(kRows * hidden);
  std::vector<float> outputs;
  for (int s = 0; s < 6; ++s) {
    REQUIRE_OK(
        RunDeviceStep(engine, Phase::kDecode, process.Next(kRows), kRows, &device, &outputs));
  }
  return outputs;
}

TEST_CASE("pinning is refused: records are staged, and the log says so once") {
  SyntheticShape shape;
  shape.experts = 16;
  shape.top_k = 4;
  const auto source = std::make_shared<SyntheticSource>(shape);
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.budget = Budget::Fraction(0.3);
  options.max_tokens_per_forward = kRows;
  std::vector<std::string> warnings;
  options.log = [&](LogLevel level, absl::string_view line) {
    if (level == LogLevel::kWarning) warnings.emplace_back(line);
  };
  auto plenty = Engine::Create(source, options);
  REQUIRE_OK(plenty.status());
  const std::vector<float> expected = Drive(plenty->get(), shape.hidden);
  CHECK(warnings.empty());
  const int64_t kept_reads = source->reads();

  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  cuda::Buffer::LimitPinning(0);
  const std::vector<float> outputs = Drive(engine->get(), shape.hidden);
  cuda::Buffer::LimitPinning(-1);
  CHECK(std::memcmp(outputs.data(), expected.data(), outputs.size() * sizeof(float)) == 0);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("pinning") != std::string::npos);
  // Nothing is kept: every load reads the source.
  CHECK(source->reads() - kept_reads == (*engine)->stats().loads);
  CHECK(source->reads() - kept_reads > kept_reads);
}

}  // namespace
}  // namespace moert::test
