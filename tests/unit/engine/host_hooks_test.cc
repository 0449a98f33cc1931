// A host's own parts and requests: policies, threads, memory, a log; leases, hints, residency.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <numeric>
#include <thread>

#include "moert/allocator.h"
#include "moert/engine.h"
#include "moert/expert_store.h"
#include "moert/strategy.h"
#include "moert/thread_pool.h"
#include "moert/source/expert_source.h"
#include "support/catch.h"
#include "support/run_engine.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::HiddenProcess;
using test::RunStep;
using test::SyntheticShape;
using test::SyntheticSource;

std::vector<float> Outputs(Engine* engine, int steps, int64_t rows) {
  HiddenProcess process(64, 5);
  std::vector<float> out;
  for (int s = 0; s < steps; ++s) {
    REQUIRE_OK(RunStep(engine, Phase::kDecode, process.Next(rows), rows, &out));
  }
  return out;
}

std::unique_ptr<Engine> Open(const EngineOptions& options,
                             std::shared_ptr<const ExpertSource> source = nullptr) {
  if (source == nullptr) source = std::make_shared<SyntheticSource>(SyntheticShape{});
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  return *std::move(engine);
}

/// Runs jobs backwards, as two workers would.
class BackwardPool final : public ThreadPool {
 public:
  int num_threads() const override { return 2; }
  void Run(int64_t num_jobs, Job job) override {
    for (int64_t i = num_jobs; i-- > 0;) job(i, static_cast<int>(i % 2));
    ++runs;
  }
  int64_t runs = 0;
};

TEST_CASE("a host's thread pool runs the kernels, with the same output") {
  const auto pool = std::make_shared<BackwardPool>();
  EngineOptions options;
  const std::vector<float> expected = Outputs(Open(options).get(), 5, 3);
  options.thread_pool = pool;
  CHECK(Outputs(Open(options).get(), 5, 3) == expected);
  CHECK(pool->runs > 0);
  CHECK(pool.use_count() == 2);
}

TEST_CASE("compute threads can be pinned") {
  EngineOptions options;
  const std::vector<float> expected = Outputs(Open(options).get(), 2, 3);
  options.threads = 2;
  options.cpus = {0};
  CHECK(Outputs(Open(options).get(), 2, 3) == expected);
}

class CountingAllocator final : public HostAllocator {
 public:
  void* Allocate(int64_t bytes, int64_t alignment) override {
    if (held + bytes > most_allowed) return nullptr;
    void* memory = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(bytes));
    blocks[memory] = bytes;
    held += bytes;
    most = std::max(most, held);
    return memory;
  }
  void Free(void* memory, int64_t bytes) override {
    CHECK(blocks.at(memory) == bytes);
    blocks.erase(memory);
    held -= bytes;
    std::free(memory);
  }
  std::map<void*, int64_t> blocks;
  int64_t held = 0, most = 0, most_allowed = INT64_MAX;
};

TEST_CASE("expert pools live in the host's memory") {
  const auto allocator = std::make_shared<CountingAllocator>();
  EngineOptions options;
  const std::vector<float> expected = Outputs(Open(options).get(), 8, 3);
  options.allocator = allocator;
  options.budget = Budget::Fraction(0.5);
  {
    const auto engine = Open(options);
    CHECK(Outputs(engine.get(), 8, 3) == expected);
    CHECK(allocator->held == engine->stats().pool_bytes);
    CHECK(allocator->held > 0);
    // Shrinking gives memory back at once.
    REQUIRE_OK(engine->SetBudget(Budget::Fraction(0.25)));
    CHECK(allocator->held == engine->stats().pool_bytes);
    CHECK(allocator->held <= engine->memory().slots * engine->memory().block_bytes);
    // A host that has no more: the engine goes on with what it holds.
    REQUIRE_OK(engine->SetBudget(Budget::Fraction(1)));
    allocator->most_allowed = allocator->held;
    CHECK(Outputs(engine.get(), 8, 3) == expected);
    CHECK(allocator->held == allocator->most_allowed);
  }
  CHECK(allocator->held == 0);
  CHECK(allocator->blocks.empty());
}

TEST_CASE("an allocator with nothing to give is an error of the call") {
  const auto allocator = std::make_shared<CountingAllocator>();
  allocator->most_allowed = 0;
  EngineOptions options;
  options.allocator = allocator;
  const auto engine = Open(options);
  HiddenProcess process(64, 5);
  std::vector<float> out;
  const absl::Status failed = RunStep(engine.get(), Phase::kDecode, process.Next(1), 1, &out);
  CHECK(failed.code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(failed.message()),
             Catch::Contains("the host's allocator returned NULL, though the budget has room"));
  allocator->most_allowed = INT64_MAX;
  CHECK(RunStep(engine.get(), Phase::kDecode, process.Next(1), 1, &out).ok());
}

/// Evicts what was used last: the worst choice, and visible in the statistics.
class MostRecent final : public ResidencyPolicy {
 public:
  int Victim(const VictimSnapshot& snapshot) override {
    const auto& all = snapshot.candidates;
    return static_cast<int>(
        std::max_element(all.begin(), all.end(),
                         [](const auto& a, const auto& b) { return a.last_used < b.last_used; }) -
        all.begin());
  }
};

TEST_CASE("a host's policy takes its seam of the strategy") {
  EngineOptions options;
  options.budget = Budget::Fraction(0.5);
  const auto lru = Open(options);
  const std::vector<float> expected = Outputs(lru.get(), 30, 1);
  options.customize_strategy = [](Strategy* strategy) {
    strategy->residency = std::make_unique<MostRecent>();
    return absl::OkStatus();
  };
  const auto mru = Open(options);
  CHECK(Outputs(mru.get(), 30, 1) == expected);  // exact whatever the policy
  CHECK(mru->stats().hits_resident != lru->stats().hits_resident);

  options.customize_strategy = [](Strategy*) { return absl::UnimplementedError("not today"); };
  CHECK(Engine::Create(std::make_shared<SyntheticSource>(SyntheticShape{}), options)
            .status()
            .message() == "not today");
}

TEST_CASE("the log tells what an operator wants to know, and may ask the engine back") {
  std::vector<std::string> lines;
  Engine* asked = nullptr;
  EngineOptions options;
  options.log = [&](LogLevel level, absl::string_view line) {
    if (asked != nullptr) CHECK(asked->stats().budget_bytes > 0);
    lines.push_back(std::to_string(static_cast<int>(level)) + " " + std::string(line));
  };
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{});
  const auto engine = Open(options, source);
  asked = engine.get();
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], Catch::Contains("0 synthetic opened, strategy on-demand"));
  REQUIRE_OK(engine->SetBudget(Budget::Fraction(0.5)));
  REQUIRE(lines.size() == 2);
  CHECK_THAT(lines[1], Catch::Contains("room for 12 experts"));
  source->set_broken(true);
  std::vector<float> out;
  HiddenProcess process(64, 5);
  CHECK(!RunStep(engine.get(), Phase::kDecode, process.Next(1), 1, &out).ok());
  REQUIRE(lines.size() == 3);
  CHECK_THAT(lines[2], Catch::Contains("2 layer 0") && Catch::Contains("injected"));
}

TEST_CASE("a strategy that predicts says once that the host's routing has no scores for it") {
  std::vector<std::string> lines;
  EngineOptions options;
  options.strategy = "fate";
  options.budget = Budget::Fraction(0.5);
  options.log = [&](LogLevel, absl::string_view line) {
    if (line.find("next_scores") != line.npos) lines.emplace_back(line);
  };
  const auto engine = Open(options);
  const std::vector<float> next(8, 0.1f), x(64, 0.5f);
  const std::vector<int32_t> ids = {1, 2};
  const std::vector<float> weights = {0.5f, 0.5f};
  std::vector<float> out(64);
  const auto call = [&](bool scores) {
    const auto step = engine->BeginStep({Phase::kDecode, 1});
    REQUIRE_OK(step.status());
    for (int l = 0; l < engine->model().num_layers(); ++l) {
      RoutedInput routed;
      routed.ids = ids;
      routed.weights = weights;
      if (scores) routed.next_scores = next;
      REQUIRE_OK(engine->ForwardRouted(*step, l, {x.data(), DType::kF32, 1, 64, 64}, routed,
                                       {out.data(), DType::kF32, 1, 64, 64}));
    }
    REQUIRE_OK(engine->EndStep(*step));
  };
  call(true);
  call(false);
  call(true);
  call(false);
  CHECK(lines.empty());  // calls between that lack them
  call(false);
  call(false);
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0],
             Catch::Contains("strategy fate") && Catch::Contains("nothing is prefetched"));
}

TEST_CASE("leased experts are there, stay there, and are the source's bytes") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{});
  EngineOptions options;
  options.budget = Budget::Fraction(0.5);  // 12 of 24
  const auto engine = Open(options, source);
  const auto step = engine->BeginStep({Phase::kDecode, 1});
  REQUIRE_OK(step.status());
  std::vector<ExpertView> views;
  const auto lease = engine->AcquireExperts(*step, 1, {5, 2}, &views);
  REQUIRE_OK(lease.status());
  REQUIRE(views.size() == 2);
  CHECK(views[0].expert == 5);
  CHECK(views[1].expert == 2);
  const auto same = [&](const ExpertView& view) {
    std::vector<std::byte> expected(static_cast<size_t>(view.layout->bytes));
    REQUIRE_OK(source->ReadRecord(1, view.expert, 0, absl::MakeSpan(expected)));
    return std::equal(expected.begin(), expected.end(), view.record);
  };
  CHECK(same(views[0]));
  CHECK(same(views[1]));
  CHECK(engine->stats().lookups == 2);
  CHECK(engine->stats().loads == 2);

  // The bytes do not move, whatever other steps run.
  Outputs(engine.get(), 30, 3);
  CHECK(same(views[0]));
  CHECK(same(views[1]));
  auto residency = engine->ResidencyOf(1);
  REQUIRE_OK(residency.status());
  CHECK((*residency)[5] == Residency::kHigh);
  CHECK((*residency)[2] == Residency::kHigh);

  const auto count = [](absl::Span<const ExpertView> held) {
    return held.size() == 2 ? absl::OkStatus() : absl::InternalError("not what was leased");
  };
  REQUIRE_OK(engine->UseLease(*lease, count));
  REQUIRE_OK(engine->ReleaseExperts(*lease));
  CHECK(engine->UseLease(*lease, count).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(engine->ReleaseExperts(*lease).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(engine->ReleaseExperts(77).code() == absl::StatusCode::kInvalidArgument);
  CHECK(!engine->AcquireExperts(*step, 1, {8}, &views).ok());
  CHECK(!engine->AcquireExperts(*step, 3, {0}, &views).ok());
  CHECK(!engine->AcquireExperts(77, 1, {0}, &views).ok());
  REQUIRE_OK(engine->EndStep(*step));
}

TEST_CASE("a lease cannot be used once its step has ended, nor end while it is used") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{});
  EngineOptions options;
  options.budget = Budget::Fraction(0.5);
  const auto engine = Open(options, source);
  const auto step = engine->BeginStep({Phase::kDecode, 1});
  std::vector<ExpertView> views;
  const auto lease = engine->AcquireExperts(*step, 1, {5}, &views);
  REQUIRE_OK(lease.status());
  std::thread ender;
  std::atomic<bool> ended{false};
  REQUIRE_OK(engine->UseLease(*lease, [&](absl::Span<const ExpertView> held) {
    ender = std::thread([&] {
      (void)engine->EndStep(*step);
      ended = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return ended || held[0].expert != 5 ? absl::InternalError("it ended") : absl::OkStatus();
  }));
  ender.join();
  CHECK(engine->UseLease(*lease, [](auto) { return absl::OkStatus(); }).code() ==
        absl::StatusCode::kFailedPrecondition);
  CHECK(engine->EndStep(*step).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(engine->EndStep(*step + 1).code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a lease that does not fit is refused and holds nothing; a step's end releases") {
  EngineOptions options;
  options.budget = Budget::Fraction(0.125);  // 3 of 24
  const auto engine = Open(options);
  const auto step = engine->BeginStep({Phase::kDecode, 1});
  std::vector<ExpertView> views;
  const std::vector<int32_t> four = {0, 1, 2, 3};
  CHECK(engine->AcquireExperts(*step, 0, four, &views).status().code() ==
        absl::StatusCode::kResourceExhausted);
  REQUIRE_OK(engine->AcquireExperts(*step, 0, {4, 5, 6}, &views).status());
  // Now no layer call has a block to load into.
  std::vector<float> x(64, 0.3f), y(64);
  const auto other = engine->BeginStep({Phase::kDecode, 1});
  CHECK(engine
            ->Forward(*other, 1, {x.data(), DType::kF32, 1, 64, 64},
                      {y.data(), DType::kF32, 1, 64, 64})
            .code() == absl::StatusCode::kResourceExhausted);
  (void)engine->EndStep(*other);
  REQUIRE_OK(engine->EndStep(*step));
  const auto again = engine->BeginStep({Phase::kDecode, 1});
  CHECK(engine
            ->Forward(*again, 1, {x.data(), DType::kF32, 1, 64, 64},
                      {y.data(), DType::kF32, 1, 64, 64})
            .ok());
  REQUIRE_OK(engine->EndStep(*again));
}

TEST_CASE("a source that fails is a failed lease") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{});
  const auto engine = Open({}, source);
  const auto step = engine->BeginStep({Phase::kDecode, 1});
  std::vector<ExpertView> views;
  source->set_broken(true);
  CHECK(engine->AcquireExperts(*step, 0, {1, 2}, &views).status().code() ==
        absl::StatusCode::kDataLoss);
  source->set_broken(false);
  CHECK(engine->AcquireExperts(*step, 0, {1, 2}, &views).ok());
  REQUIRE_OK(engine->EndStep(*step));
}

TEST_CASE("a hint is a prefetch") {
  EngineOptions options;
  options.clock = ClockKind::kVirtual;
  const auto engine = Open(options);
  std::vector<int32_t> all(8);
  std::iota(all.begin(), all.end(), 0);
  REQUIRE_OK(engine->PrefetchHint(1, all));
  CHECK(engine->PrefetchHint(1, {8}).code() == absl::StatusCode::kInvalidArgument);
  CHECK(engine->PrefetchHint(9, {0}).code() == absl::StatusCode::kInvalidArgument);
  Outputs(engine.get(), 1, 1);
  const EngineStats stats = engine->stats();
  CHECK(stats.prefetch_issued == 8);
  CHECK(stats.prefetch_useful == 2);  // layer 1 used two of them
}

}  // namespace
}  // namespace moert
