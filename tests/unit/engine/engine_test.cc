// The engine's contract: budgets, errors, live changes, element types.
#include "moert/engine.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "base/bf16.h"
#include "support/catch.h"
#include "support/run_engine.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::HiddenProcess;
using test::RunStep;
using test::SyntheticShape;
using test::SyntheticSource;

TEST_CASE("a budget below the minimum is refused with the arithmetic") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{});
  EngineOptions options;
  const auto plan = Engine::Plan(*source, options);
  REQUIRE_OK(plan.status());
  CHECK(plan->minimum_bytes ==
        plan->constant_bytes + plan->table_bytes + plan->workspace_bytes + plan->block_bytes);
  options.budget = Budget::Bytes(plan->minimum_bytes - 1);
  const absl::Status status = Engine::Create(source, options).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Catch::Contains("below the minimum"));
  CHECK_THAT(std::string(status.message()), Catch::Contains("workspace"));
  options.budget = Budget::Bytes(plan->minimum_bytes);
  CHECK(Engine::Create(source, options).ok());
}

TEST_CASE("resident refuses a budget that cannot hold every expert") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{});
  EngineOptions options;
  options.strategy = "resident";
  options.budget = Budget::Fraction(0.5);
  const absl::Status status = Engine::Create(source, options).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(status.message()),
             Catch::Contains("24 experts of 20.0 KiB take 480.0 KiB"));
}

TEST_CASE("illegal options name field, value and range") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{});
  EngineOptions options;
  options.io_threads = 99;
  CHECK_THAT(std::string(Engine::Create(source, options).status().message()),
             Catch::Contains("io_threads = 99") && Catch::Contains("[1, 16]"));
  options = {};
  options.budget = Budget::Fraction(1.5);
  CHECK_THAT(std::string(Engine::Create(source, options).status().message()),
             Catch::Contains("1.5") && Catch::Contains("(0, 1]"));
}

TEST_CASE("a step ends itself") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{});
  const auto engine = *Engine::Create(source, {});
  const int64_t hidden = engine->model().layers[0].hidden;
  std::vector<float> x(hidden, 1.0f), y(hidden);
  const MatrixView in{x.data(), DType::kF32, 1, hidden, hidden};
  const MutableMatrixView out{y.data(), DType::kF32, 1, hidden, hidden};

  StepId lost = 0;
  {
    auto step = engine->Begin({Phase::kDecode, 1});
    REQUIRE_OK(step.status());
    REQUIRE_OK(step->Forward(0, in, out));
    lost = step->id();
    CHECK(engine->StepStatus(lost).ok());
  }
  CHECK(engine->StepStatus(lost).code() == absl::StatusCode::kFailedPrecondition);

  auto first = engine->Begin({Phase::kDecode, 1});
  auto second = engine->Begin({Phase::kDecode, 1});
  REQUIRE_OK(second.status());
  const StepId replaced = first->id();
  *first = *std::move(second);  // ends the step it replaces
  CHECK(engine->StepStatus(replaced).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(second->Forward(0, in, out).code() == absl::StatusCode::kFailedPrecondition);
  REQUIRE_OK(first->Forward(0, in, out));
  REQUIRE_OK(first->End());
  CHECK(first->End().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(first->Cancel().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("a source that fails in mid-run: the step reports it and the engine goes on") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{});
  EngineOptions options;
  options.budget = Budget::Fraction(0.5);
  options.clock = GENERATE(ClockKind::kWall, ClockKind::kVirtual);
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  HiddenProcess process(64, 5);
  std::vector<float> out;
  const std::vector<float> x = process.Next(1);
  REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, x, 1, &out));
  const std::vector<float> expected = out;

  source->set_broken(true);
  absl::Status failed;
  for (int s = 0; s < 50 && failed.ok(); ++s) {
    failed = RunStep(engine->get(), Phase::kDecode, process.Next(1), 1, &out);
  }
  CHECK(failed.code() == absl::StatusCode::kDataLoss);
  CHECK_THAT(std::string(failed.message()), Catch::Contains("injected: layer"));
  // The same input again: all its experts may be gone or not; after the repair it must be right.
  source->set_broken(false);
  out.clear();
  REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, x, 1, &out));
  CHECK(out == expected);
}

/// Its first read takes a while and fails.
class FailsFirst final : public SyntheticSource {
 public:
  FailsFirst() : SyntheticSource(SyntheticShape{}) {}
  absl::Status ReadRecord(int layer, int expert, int version,
                          absl::Span<std::byte> dst) const override {
    if (!first_.exchange(false)) {
      return SyntheticSource::ReadRecord(layer, expert, version, dst);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return absl::DataLossError("the first read");
  }

 private:
  mutable std::atomic<bool> first_ = true;
};

TEST_CASE("a prefetch that fails is no error of the call that waits for it") {
  const bool hinted = GENERATE(true, false);
  auto engine = Engine::Create(std::make_shared<FailsFirst>(), EngineOptions{});
  REQUIRE_OK(engine.status());
  const int64_t hidden = (*engine)->model().layers[0].hidden;
  const std::vector<float> x(hidden, 0.5f);
  std::vector<float> y(hidden);
  RoutedInput routing;
  const std::vector<int32_t> ids = {3, -1};
  const std::vector<float> weights = {1, 0};
  routing.ids = ids;
  routing.weights = weights;
  if (hinted) REQUIRE_OK((*engine)->PrefetchHint(0, {3}));
  auto step = (*engine)->Begin({Phase::kDecode, 1});
  REQUIRE_OK(step.status());
  const absl::Status status =
      step->ForwardRouted(0, {x.data(), DType::kF32, 1, hidden, hidden}, routing,
                          {y.data(), DType::kF32, 1, hidden, hidden});
  CHECK(status.code() == (hinted ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss));
  CHECK(step->End().code() == status.code());
}

TEST_CASE("what is resident still answers while the source is broken") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{});
  EngineOptions options;  // 100 %: everything used once stays
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  HiddenProcess process(64, 5);
  const std::vector<float> x = process.Next(3);
  std::vector<float> expected, out;
  REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, x, 3, &expected));
  source->set_broken(true);
  REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, x, 3, &out));
  CHECK(out == expected);
}

TEST_CASE("the budget changes live") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{4, 16, 2, 64, 48, 0});
  EngineOptions options;
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  HiddenProcess process(64, 5);
  std::vector<float> expected, out;
  const std::vector<float> x = process.Next(40);
  REQUIRE_OK(RunStep(engine->get(), Phase::kPrefill, x, 40, &expected));
  const EngineStats full = (*engine)->stats();
  CHECK(full.pool_bytes > 0);

  REQUIRE_OK((*engine)->SetBudget(Budget::Fraction(0.25)));
  const EngineStats shrunk = (*engine)->stats();
  CHECK(shrunk.budget_bytes < full.budget_bytes);
  CHECK(shrunk.fixed_bytes + shrunk.pool_bytes <= shrunk.budget_bytes);
  CHECK(shrunk.pool_bytes <= full.pool_bytes / 2);
  REQUIRE_OK(RunStep(engine->get(), Phase::kPrefill, x, 40, &out));
  CHECK(out == expected);
  CHECK((*engine)->stats().fixed_bytes + (*engine)->stats().pool_bytes <= shrunk.budget_bytes);

  const absl::Status refused = (*engine)->SetBudget(Budget::Bytes(1000));
  CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
  CHECK((*engine)->stats().budget_bytes == shrunk.budget_bytes);

  REQUIRE_OK((*engine)->SetBudget(Budget::Fraction(1)));
  const int64_t reads = source->reads();
  out.clear();
  REQUIRE_OK(RunStep(engine->get(), Phase::kPrefill, x, 40, &out));
  CHECK(out == expected);
  CHECK(source->reads() > reads);
  const int64_t warm = source->reads();
  REQUIRE_OK(RunStep(engine->get(), Phase::kPrefill, x, 40, &out));
  CHECK(source->reads() == warm);
}

TEST_CASE("on the CPU no strategy can be captured in a graph") {
  const auto source = std::make_shared<SyntheticSource>(
      SyntheticShape{2, 8, 2, 64, 48, 0, false, false, /*low_version=*/true});
  for (const char* strategy : {"resident:scheme=bf16", "on-demand", "dynaexq:hi=bf16,lo=low"}) {
    EngineOptions options;
    options.strategy = strategy;
    options.budget = Budget::Bytes(int64_t{8} << 20);
    auto engine = Engine::Create(source, options);
    REQUIRE_OK(engine.status());
    const GraphNeeds& needs = (*engine)->graph_needs();
    CHECK(!needs.capturable);
    CHECK_THAT(needs.obstacle, Catch::Contains("computes on the host"));
    CHECK(needs.eager_every == 0);
  }
}

TEST_CASE("statistics of a warm and a cold run add up") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{});
  EngineOptions options;
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  HiddenProcess process(64, 5);
  const std::vector<float> x = process.Next(1);
  std::vector<float> out;
  REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, x, 1, &out));
  const EngineStats cold = (*engine)->stats();
  CHECK(cold.lookups == 3 * 2);
  CHECK(cold.loads == 6);
  CHECK(cold.hits_resident == 0);
  CHECK(cold.hit_ratio() == 0);
  CHECK(cold.slots == 6);
  const int64_t record = source->layout(0, 0, 0).bytes;
  CHECK(cold.bytes_loaded == 6 * record);
  REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, x, 1, &out));
  const EngineStats warm = (*engine)->stats();
  CHECK(warm.lookups == 12);
  CHECK(warm.hits_resident == 6);
  CHECK(warm.loads == 6);
}

TEST_CASE("hidden states come in bf16, f16 and f32, with any row stride") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{1, 8, 2, 64, 48, 0});
  auto engine = Engine::Create(source, {});
  REQUIRE_OK(engine.status());
  HiddenProcess process(64, 5);
  std::vector<float> x = process.Next(3);
  for (float& v : x) v = RoundToBf16(std::clamp(v, -3.0f, 3.0f));
  const auto forward = [&](MatrixView in, MutableMatrixView out) {
    auto step = (*engine)->BeginStep({Phase::kDecode, 3});
    REQUIRE_OK(step.status());
    REQUIRE_OK((*engine)->Forward(*step, 0, in, out));
    REQUIRE_OK((*engine)->EndStep(*step));
  };
  std::vector<float> expected(3 * 64);
  forward({x.data(), DType::kF32, 3, 64, 64}, {expected.data(), DType::kF32, 3, 64, 64});

  std::vector<uint16_t> half(3 * 80), result(3 * 70, 0xdead);
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 64; ++c) half[r * 80 + c] = F32ToBf16(x[r * 64 + c]);
  }
  forward({half.data(), DType::kBF16, 3, 64, 80}, {result.data(), DType::kBF16, 3, 64, 70});
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 64; ++c) {
      REQUIRE(result[r * 70 + c] == F32ToBf16(expected[r * 64 + c]));
    }
    for (int c = 64; c < 70; ++c) REQUIRE(result[r * 70 + c] == 0xdead);
  }
}

TEST_CASE("misuse is an error, not a crash") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{});
  auto engine = Engine::Create(source, {});
  REQUIRE_OK(engine.status());
  std::vector<float> x(64), y(64);
  const MatrixView in{x.data(), DType::kF32, 1, 64, 64};
  const MutableMatrixView out{y.data(), DType::kF32, 1, 64, 64};
  CHECK((*engine)->Forward(77, 0, in, out).code() == absl::StatusCode::kInvalidArgument);
  CHECK((*engine)->EndStep(77).code() == absl::StatusCode::kInvalidArgument);
  CHECK(!(*engine)->BeginStep({Phase::kDecode, 0}).ok());
  CHECK(!(*engine)->BeginStep({Phase::kDecode, 100000}).ok());
  auto step = (*engine)->BeginStep({Phase::kDecode, 1});
  REQUIRE_OK(step.status());
  CHECK(!(*engine)->Forward(*step, 3, in, out).ok());
  CHECK(!(*engine)->Forward(*step, -1, in, out).ok());
  CHECK(!(*engine)->Forward(*step, 0, {nullptr, DType::kF32, 1, 64, 64}, out).ok());
  CHECK(!(*engine)->Forward(*step, 0, {x.data(), DType::kF32, 2, 64, 64}, out).ok());
  CHECK(!(*engine)->Forward(*step, 0, {x.data(), DType::kI32, 1, 64, 64}, out).ok());
  CHECK(!Engine::Create(nullptr, {}).ok());
}

}  // namespace
}  // namespace moert
