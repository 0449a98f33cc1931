// Exact strategies answer bit-identically at any budget, thread count, clock and step size.
#include <cstring>

#include "support/catch.h"
#include "support/run_engine.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::HiddenProcess;
using test::RunStep;
using test::SyntheticShape;
using test::SyntheticSource;

struct Workload {
  Phase phase;
  int64_t rows;
  int steps;
};

std::vector<float> Answers(std::shared_ptr<const ExpertSource> source, const EngineOptions& options,
                           const Workload& work, EngineStats* stats = nullptr) {
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  HiddenProcess process(source->model().layers[0].hidden, 7);
  std::vector<float> out;
  for (int s = 0; s < work.steps; ++s) {
    REQUIRE_OK(RunStep(engine->get(), work.phase, process.Next(work.rows), work.rows, &out));
  }
  if (stats != nullptr) *stats = (*engine)->stats();
  CHECK((*engine)->stats().peak_bytes <= (*engine)->stats().budget_bytes);
  return out;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_CASE("exact strategies are bit-identical to resident over budgets, threads and clocks") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{4, 12, 3, 96, 48, 40});
  const Workload work = GENERATE(Workload{Phase::kPrefill, 33, 2}, Workload{Phase::kDecode, 1, 12},
                                 Workload{Phase::kDecode, 5, 6});
  EngineOptions reference;
  reference.strategy = "resident";
  reference.threads = 1;
  reference.max_tokens_per_forward = 64;
  const std::vector<float> expected = Answers(source, reference, work);
  float largest = 0;
  for (const float v : expected) largest = std::max(largest, std::abs(v));
  REQUIRE(largest > 0.01f);

  for (const char* strategy : {"on-demand", "on-demand+fate.prefetch", "importance:alpha=0", "fate",
                               "fate:eviction=arc,percentile=75", "fate:shallow=0,wrap=1,top=5",
                               "fate:shallow=2,transient=3"}) {
    for (const double share : {1.0, 0.5, 0.25, 0.15, 0.0}) {
      for (const int threads : {1, 2}) {
        for (const ClockKind clock : {ClockKind::kWall, ClockKind::kVirtual}) {
          EngineOptions options = reference;
          options.strategy = strategy;
          options.threads = threads;
          options.clock = clock;
          if (share > 0) {
            options.budget = Budget::Fraction(share);
          } else {
            const auto plan = Engine::Plan(*source, options);
            REQUIRE_OK(plan.status());
            options.budget = Budget::Bytes(plan->minimum_bytes);
          }
          INFO(strategy << " share " << share << " threads " << threads);
          EngineStats stats;
          CHECK(SameBits(Answers(source, options, work, &stats), expected));
          CHECK(stats.lookups > 0);
          if (share == 0.0) CHECK(stats.evictions > 0);
        }
      }
    }
  }
}

// Prefetches that land in the middle of a layer call compete with its demand loads for few blocks:
// none of the call's experts may get lost, whenever they land. On the wall clock several land
// between two looks; repeated, so that they do.
TEST_CASE("exact under late prefetches and few blocks") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{4, 12, 3, 96, 48, 40});
  const Workload work = GENERATE(Workload{Phase::kPrefill, 33, 2}, Workload{Phase::kDecode, 5, 6});
  EngineOptions options;
  options.strategy = "resident";
  const std::vector<float> expected = Answers(source, options, work);
  for (const char* strategy : {"fate:percentile=0,control=0", "importance:alpha=0"}) {
    for (int trial = 0; trial < 60; ++trial) {
      options.strategy = strategy;
      options.threads = 1 + trial % 2;
      options.budget = Budget::Fraction(trial % 4 < 2 ? 0.15 : 0.2);
      INFO(strategy << " trial " << trial);
      CHECK(SameBits(Answers(source, options, work), expected));
    }
  }
}

TEST_CASE("a batch's rows do not depend on their neighbours") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{2, 8, 2, 64, 48, 32});
  EngineOptions options;
  options.threads = 2;
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  HiddenProcess process(64, 3);
  const std::vector<float> x = process.Next(17);
  std::vector<float> all;
  auto step = (*engine)->BeginStep({Phase::kPrefill, 17});
  REQUIRE_OK(step.status());
  all.resize(17 * 64);
  REQUIRE_OK((*engine)->Forward(*step, 1, {x.data(), DType::kF32, 17, 64, 64},
                                {all.data(), DType::kF32, 17, 64, 64}));
  REQUIRE_OK((*engine)->EndStep(*step));
  for (int row = 0; row < 17; ++row) {
    std::vector<float> one(64);
    auto single = (*engine)->BeginStep({Phase::kDecode, 1});
    REQUIRE_OK(single.status());
    REQUIRE_OK((*engine)->Forward(*single, 1, {x.data() + row * 64, DType::kF32, 1, 64, 64},
                                  {one.data(), DType::kF32, 1, 64, 64}));
    REQUIRE_OK((*engine)->EndStep(*single));
    CHECK(std::memcmp(one.data(), all.data() + row * 64, 64 * sizeof(float)) == 0);
  }
}

TEST_CASE("a run on the virtual clock is reproducible to the nanosecond") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{4, 12, 3, 96, 48, 40});
  EngineOptions options;
  // fate replaces nothing that it predicts with more confidence: with many rows in few slots that
  // is everybody, and it prefetches nothing.
  const auto [strategy, rows] =
      GENERATE(table<const char*, int>({{"on-demand+fate.prefetch", 20}, {"fate", 2}}));
  options.strategy = strategy;
  options.budget = Budget::Fraction(0.4);
  options.clock = ClockKind::kVirtual;
  options.link_gbps = 0.1;
  EngineStats stats[2];
  int64_t now[2];
  for (int run = 0; run < 2; ++run) {
    options.threads = run + 1;
    auto engine = Engine::Create(source, options);
    REQUIRE_OK(engine.status());
    HiddenProcess process(96, 7);
    std::vector<float> out;
    for (int s = 0; s < 20; ++s) {
      REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, process.Next(rows), rows, &out));
    }
    stats[run] = (*engine)->stats();
    now[run] = (*engine)->now_ns();
  }
  CHECK(now[0] == now[1]);
  CHECK(stats[0].stall_miss_ns == stats[1].stall_miss_ns);
  CHECK(stats[0].stall_miss_ns > 0);
  CHECK(stats[0].hits_prefetched == stats[1].hits_prefetched);
  CHECK(stats[0].prefetch_issued > 0);
  CHECK(stats[0].late == stats[1].late);
  CHECK(stats[0].evictions == stats[1].evictions);
}

}  // namespace
}  // namespace moert
