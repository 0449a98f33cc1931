// A million transitions: loads, evictions, switches between versions and budget changes while
// layers run. Every output must be the bits of an engine that holds everything. Slow:
//   gpu.churn_test [slow]
#include <cstring>
#include <random>

#include "device_step.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

constexpr int64_t kRows = 16;
constexpr int kInputs = 24;
// 4.2 MiB of fixed parts; 192 experts of 20 KiB are 3.8 MiB.
constexpr int64_t kLow = 4800 << 10, kHigh = 8300 << 10;
constexpr int64_t kTwinLow = 8400 << 10, kTwinHigh = 12000 << 10;

SyntheticShape Shape() {
  SyntheticShape shape;
  shape.layers = 3;
  shape.experts = 64;
  shape.top_k = 8;
  shape.hidden = 64;
  shape.intermediate = 48;
  return shape;
}

/// Two versions with the same bytes: a switch changes where an expert is and nothing else.
class TwinSource final : public SyntheticSource {
 public:
  explicit TwinSource(const SyntheticShape& shape) : SyntheticSource(shape) {}
  int num_versions() const override { return 2; }
  absl::string_view version_name(int v) const override { return v == 0 ? "high" : "low"; }
  const RecordLayout& layout(int layer, int expert, int) const override {
    return SyntheticSource::layout(layer, expert, 0);
  }
  absl::Status ReadRecord(int layer, int expert, int, absl::Span<std::byte> dst) const override {
    return SyntheticSource::ReadRecord(layer, expert, 0, dst);
  }
};

EngineOptions Options(const std::string& strategy, Budget budget) {
  EngineOptions o;
  o.backend = BackendKind::kCuda;
  o.strategy = strategy;
  o.budget = budget;
  o.max_tokens_per_forward = kRows;
  return o;
}

std::vector<std::vector<float>> Inputs() {
  HiddenProcess process(Shape().hidden, 11);
  std::vector<std::vector<float>> inputs;
  for (int i = 0; i < kInputs; ++i) inputs.push_back(process.Next(kRows));
  return inputs;
}

/// Steps of random inputs under random budgets, bytes from `low` to `high`, until `transitions`
/// have been made; the number of outputs with a wrong bit.
int64_t Churn(std::shared_ptr<ExpertSource> source, const std::string& strategy, int64_t low,
              int64_t high, int64_t transitions, int64_t* made) {
  const std::vector<std::vector<float>> inputs = Inputs();
  DeviceRowsBuffer device(kRows * Shape().hidden);
  std::vector<std::vector<float>> expected(kInputs);
  {
    auto all = Engine::Create(std::make_shared<SyntheticSource>(Shape()),
                              Options("resident", Budget::Fraction(1)));
    REQUIRE_OK(all.status());
    for (int i = 0; i < kInputs; ++i) {
      REQUIRE_OK(
          RunDeviceStep(all->get(), Phase::kDecode, inputs[i], kRows, &device, &expected[i]));
    }
  }
  auto engine = Engine::Create(source, Options(strategy, Budget::Bytes(high)));
  REQUIRE_OK(engine.status());
  std::mt19937 rng(5);
  std::uniform_int_distribution<int64_t> budget(low, high);
  int64_t wrong = 0;
  std::vector<float> outputs;
  *made = 0;
  for (int64_t step = 0; *made < transitions; ++step) {
    if (step % 40 == 39) {
      // Refused (more than this strategy can do without) is legal; exceeded is not.
      const absl::Status status = (*engine)->SetBudget(Budget::Bytes(budget(rng)));
      (void)status;
    }
    const int i = static_cast<int>(rng() % kInputs);
    outputs.clear();
    REQUIRE_OK(RunDeviceStep(engine->get(), Phase::kDecode, inputs[i], kRows, &device, &outputs));
    wrong += std::memcmp(outputs.data(), expected[i].data(), outputs.size() * sizeof(float)) != 0;
    const EngineStats stats = (*engine)->stats();
    if (stats.pool_bytes > (*engine)->memory().pool_bytes()) ++wrong;
    *made = stats.loads + stats.evictions + stats.promotions + stats.demotions;
    if (step > 2000 && *made == 0) break;  // nothing moves: the caller sees it
  }
  return wrong;
}

TEST_CASE("loads and evictions under changing budgets", "[.][slow]") {
  int64_t made = 0;
  CHECK(Churn(std::make_shared<SyntheticSource>(Shape()), "on-demand", kLow, kHigh, 800000,
              &made) == 0);
  CHECK(made >= 800000);
}

TEST_CASE("switches between versions", "[.][slow]") {
  int64_t made = 0;
  CHECK(Churn(std::make_shared<TwinSource>(Shape()),
              "dynaexq:hi=high,lo=low,interval_ms=0.001,hi_fraction=0.3", kTwinLow, kTwinHigh,
              200000, &made) == 0);
  CHECK(made >= 200000);
}

TEST_CASE("a short churn") {
  int64_t made = 0;
  CHECK(Churn(std::make_shared<SyntheticSource>(Shape()), "on-demand", kLow, kHigh, 5000, &made) ==
        0);
  CHECK(made >= 5000);
}

}  // namespace
}  // namespace moert::test
