// A card that is not the engine's alone: memory that another program takes, another engine.
#include <cstring>

#include "device_step.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

constexpr int64_t kRows = 12;

SyntheticShape Shape() {
  SyntheticShape shape;
  shape.layers = 3;
  shape.experts = 64;
  shape.top_k = 4;
  shape.hidden = 1024;
  shape.intermediate = 1024;  // 6 MiB an expert, over 1 GiB in all
  return shape;
}

EngineOptions Options(const std::string& strategy, double share) {
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.strategy = strategy;
  options.budget = Budget::Fraction(share);
  options.max_tokens_per_forward = kRows;
  return options;
}

absl::Status Drive(Engine* engine, int steps, std::vector<float>* outputs) {
  HiddenProcess process(Shape().hidden, 7);
  DeviceRowsBuffer device(kRows * Shape().hidden);
  absl::Status status;
  for (int s = 0; s < steps && status.ok(); ++s) {
    status = RunDeviceStep(engine, Phase::kDecode, process.Next(kRows), kRows, &device, outputs);
  }
  return status;
}

size_t FreeBytes() {
  size_t free = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  return free;
}

/// All of the device's memory but so much.
class Taken {
 public:
  explicit Taken(size_t leave) {
    const size_t free = FreeBytes();
    REQUIRE(free > leave);
    REQUIRE(cudaMalloc(&memory_, free - leave) == cudaSuccess);
  }
  ~Taken() { cudaFree(memory_); }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;

 private:
  void* memory_ = nullptr;
};

TEST_CASE("another program has the card's memory: an engine is refused, and nothing stays behind") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  { REQUIRE_OK(Engine::Create(source, Options("resident", 1)).status()); }  // contexts and modules
  const size_t before = FreeBytes();
  {
    const Taken taken(size_t{200} << 20);
    const auto refused = Engine::Create(source, Options("resident", 1));
    INFO(refused.status());
    CHECK(refused.status().code() == absl::StatusCode::kResourceExhausted);
  }
  CHECK(FreeBytes() + (size_t{4} << 20) >= before);
  REQUIRE_OK(Engine::Create(source, Options("resident", 1)).status());
}

TEST_CASE("another program takes the card's memory from under an engine") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  const std::string strategy = GENERATE("on-demand", "fate");
  auto fixed = Engine::Create(source, Options("on-demand", 0.2));
  REQUIRE_OK(fixed.status());
  std::vector<float> expected, first;
  REQUIRE_OK(Drive(fixed->get(), 6, &expected));
  auto engine = Engine::Create(source, Options(strategy, 1));
  REQUIRE_OK(engine.status());
  REQUIRE_OK(Drive(engine->get(), 1, &first));
  absl::Status status;
  {
    // Most experts have not been brought yet. Those that find no memory take other experts' blocks.
    const Taken taken(size_t{48} << 20);
    std::vector<float> outputs;
    status = Drive(engine->get(), 6, &outputs);
    INFO(strategy << ": " << status);
    CHECK((status.ok() || status.code() == absl::StatusCode::kResourceExhausted));
    if (status.ok()) {
      CHECK(std::memcmp(outputs.data(), expected.data(), outputs.size() * sizeof(float)) == 0);
    }
  }
  std::vector<float> again;
  REQUIRE_OK(Drive(engine->get(), 6, &again));
  CHECK(std::memcmp(again.data(), expected.data(), again.size() * sizeof(float)) == 0);
  const EngineStats stats = (*engine)->stats();
  CHECK(stats.peak_bytes <= stats.budget_bytes);
}

TEST_CASE("two engines on one card, in turns: each has its own budget and the same bits") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  auto one = Engine::Create(source, Options("fate", 0.3));
  auto two = Engine::Create(source, Options("on-demand", 0.1));
  REQUIRE_OK(one.status());
  REQUIRE_OK(two.status());
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<float> a, b;
    REQUIRE_OK(Drive(one->get(), 3, &a));
    REQUIRE_OK((*two)->SetBudget(Budget::Fraction(turn % 2 == 0 ? 0.4 : 0.1)));
    REQUIRE_OK(Drive(two->get(), 3, &b));
    CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
  }
  for (const auto* engine : {&one, &two}) {
    const EngineStats stats = (**engine)->stats();
    CHECK(stats.fixed_bytes + stats.pool_bytes <= stats.budget_bytes);
  }
}

}  // namespace
}  // namespace moert::test
