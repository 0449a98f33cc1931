// A replay takes the decisions of the run that was recorded, at the same logical times.
#include "moert/tools/replay.h"

#include <cstring>
#include <map>
#include <string>

#include "moert/tools/metrics.h"
#include "support/catch.h"
#include "support/run_engine.h"
#include "support/synthetic_source.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::HiddenProcess;
using test::SyntheticShape;
using test::SyntheticSource;
using test::TempDir;

constexpr int kSteps = 60;

struct Run {
  EngineStats stats;
  int64_t end_ns = 0;
  int64_t slots = 0;
};

const std::shared_ptr<const ExpertSource>& Source() {
  static const std::shared_ptr<const ExpertSource> source = [] {
    SyntheticShape shape{4, 16, 3, 64, 256, 32};
    shape.low_version = true;
    return std::make_shared<SyntheticSource>(shape);
  }();
  return source;
}

EngineOptions Options(const std::string& strategy, double share) {
  EngineOptions options;
  options.strategy = strategy;
  options.budget = Budget::Fraction(share);
  options.clock = ClockKind::kVirtual;
  options.link_gbps = 0.05;
  options.threads = 1;
  options.max_tokens_per_forward = 32;
  options.profile.compute = {{1, 2e9}, {8, 1.5e9}};
  options.profile.decode_layer_ns = 200'000;
  return options;
}

/// A layer's output is not what the next one reads: routing is the same whatever the strategy.
Run RealRun(EngineOptions options) {
  auto engine = Engine::Create(Source(), options);
  REQUIRE_OK(engine.status());
  HiddenProcess process(64, 5);
  for (int s = 0; s < kSteps; ++s) {
    const Phase phase = s % 10 == 0 ? Phase::kPrefill : Phase::kDecode;
    const int64_t rows = phase == Phase::kPrefill ? 20 : 2;
    auto step = (*engine)->BeginStep({phase, rows});
    REQUIRE_OK(step.status());
    std::vector<float> y(static_cast<size_t>(rows * 64));
    for (int l = 0; l < 4; ++l) {
      const std::vector<float> x = process.Next(rows);
      REQUIRE_OK((*engine)->Forward(*step, l, {x.data(), DType::kF32, rows, 64, 64},
                                    {y.data(), DType::kF32, rows, 64, 64}));
    }
    REQUIRE_OK((*engine)->EndStep(*step));
  }
  return {(*engine)->stats(), (*engine)->now_ns(), (*engine)->memory().slots};
}

/// All that an engine counts, by name.
std::map<std::string, double> Counters(const EngineStats& stats) {
  std::map<std::string, double> counters;
  VisitMetrics(stats, [&](const Metric& metric) { counters[metric.name] = metric.value; });
  return counters;
}

Run RecordTo(const std::string& path) {
  auto file = CreateTrace(path, MakeTraceHeader(*Source(), 32));
  REQUIRE_OK(file.status());
  const std::shared_ptr<TraceFile> trace = *std::move(file);
  EngineOptions options = Options("resident", 1.0);
  options.trace = trace;
  const Run run = RealRun(options);
  REQUIRE_OK(trace->Close());
  return run;
}

/// The trace replays under the options to the counters, times and slots of the run.
void CheckReplay(const std::string& trace_path, const EngineOptions& options, const Run& real) {
  auto trace = OpenTrace(trace_path);
  REQUIRE_OK(trace.status());
  EngineOptions simulate = options;
  simulate.simulate = true;
  auto engine = Engine::Create(MakeSizesSource((*trace)->header()), simulate);
  REQUIRE_OK(engine.status());
  auto result = Replay(trace->get(), engine->get(), {});
  REQUIRE_OK(result.status());
  CHECK(result->steps == kSteps);
  CHECK(result->prefill_ms.size() == kSteps / 10);
  CHECK(result->decode_ms.size() == kSteps - kSteps / 10);
  CHECK((*engine)->now_ns() == real.end_ns);
  CHECK((*engine)->memory().slots == real.slots);
  std::map<std::string, double> counters = Counters((*engine)->stats());
  for (const auto& [name, value] : Counters(real.stats)) {
    INFO(name);
    CHECK(counters[name] == value);
  }
}

TEST_CASE("a replay equals the run on the virtual clock, to the nanosecond") {
  const TempDir dir;
  const std::string trace = dir / "t";
  CheckReplay(trace, Options("resident", 1.0), RecordTo(trace));
  for (const auto& [strategy, shares] : std::map<std::string, std::vector<double>>{
           {"on-demand", {0.5, 0.2}},
           {"on-demand+fate.prefetch", {0.7, 0.5, 0.3}},
           {"fate", {0.7, 0.5, 0.3}},
           {"fate:control=0", {0.7, 0.5, 0.3}},
           {"fate:percentile=75", {0.7, 0.5, 0.3}},
           {"fate:wrap=1", {0.7, 0.5, 0.3}},
           {"fate:eviction=arc", {0.7, 0.5, 0.3}},
           {"fate:scheme=bf16,low=low", {0.7, 0.5, 0.3}},
           {"importance", {0.7, 0.5, 0.3}},
           {"importance:alpha=0.3,control=0", {0.7, 0.5, 0.3}},
           {"graded:hi=bf16,lo=low+fate.prefetch", {0.9, 0.7, 0.5}},
           {"graded:hi=bf16,lo=low,wait=0+fate.prefetch", {0.9, 0.8, 0.7}},
           {"dynaexq:hi=bf16,lo=low,interval_ms=1", {0.9, 0.8, 0.7}}}) {
    // Links on which prefetches are late, some are, and none is.
    for (const double link_gbps : {0.02, 0.2, 2.0}) {
      for (const double share : shares) {
        INFO(strategy << " at " << share << " of the experts, " << link_gbps << " GB/s");
        EngineOptions options = Options(strategy, share);
        options.link_gbps = link_gbps;
        CheckReplay(trace, options, RealRun(options));
      }
    }
  }
}

TEST_CASE("recorded times replace the profile's, waiting is computed anew") {
  const TempDir dir;
  RecordTo(dir / "t");
  auto trace = OpenTrace(dir / "t");
  REQUIRE_OK(trace.status());
  EngineOptions options = Options("resident", 1.0);
  options.profile = {};  // other costs than the recording's
  options.simulate = true;
  auto engine = Engine::Create(MakeSizesSource((*trace)->header()), options);
  REQUIRE_OK(engine.status());
  ReplayOptions replay;
  replay.recorded_times = true;
  REQUIRE_OK(Replay(trace->get(), engine->get(), replay).status());
  const int64_t preloaded_ns = RealRun(Options("resident", 1.0)).end_ns;
  // The recording's clock started with the loading of every expert, over its own slow link.
  auto plain = Engine::Create(MakeSizesSource((*trace)->header()), options);
  REQUIRE_OK(plain.status());
  const int64_t load_ns = (*plain)->now_ns();
  EngineOptions recording = Options("resident", 1.0);
  auto loaded = Engine::Create(Source(), recording);
  REQUIRE_OK(loaded.status());
  // Rounding of each wave's share is all that may differ.
  CHECK(std::abs(((*engine)->now_ns() - load_ns) - (preloaded_ns - (*loaded)->now_ns())) < 200);

  EngineOptions tight = options;
  tight.strategy = "on-demand";
  tight.budget = Budget::Fraction(0.2);
  auto missing = Engine::Create(MakeSizesSource((*trace)->header()), tight);
  REQUIRE_OK(missing.status());
  REQUIRE_OK(Replay(trace->get(), missing->get(), replay).status());
  CHECK(StalledNs((*missing)->stats()) > 0);
  CHECK((*missing)->now_ns() > preloaded_ns - (*loaded)->now_ns());
}

TEST_CASE("a given routing answers as the model's own does") {
  EngineOptions options;
  options.threads = 1;
  options.max_tokens_per_forward = 8;
  auto engine = Engine::Create(Source(), options);
  REQUIRE_OK(engine.status());
  HiddenProcess process(64, 9);
  const std::vector<float> x = process.Next(5);
  std::vector<float> own(x.size()), given(x.size());

  struct Routing final : TraceSink {
    void OnCall(const TraceCall& c) override {
      ids.assign(c.ids.begin(), c.ids.end());
      weights.assign(c.weights.begin(), c.weights.end());
      scores.assign(c.scores.begin(), c.scores.end());
    }
    void OnSpan(const TimelineSpan&) override {}
    std::vector<int32_t> ids;
    std::vector<float> weights, scores;
  };
  const auto routing = std::make_shared<Routing>();
  options.trace = routing;
  auto watched = Engine::Create(Source(), options);
  REQUIRE_OK(watched.status());
  const auto forward = [&](Engine* e, const RoutedInput* routed, std::vector<float>* out) {
    auto step = e->BeginStep({Phase::kPrefill, 5});
    REQUIRE_OK(step.status());
    const MatrixView in{x.data(), DType::kF32, 5, 64, 64};
    const MutableMatrixView to{out->data(), DType::kF32, 5, 64, 64};
    const absl::Status status = routed == nullptr ? e->Forward(*step, 2, in, to)
                                                  : e->ForwardRouted(*step, 2, in, *routed, to);
    (void)e->EndStep(*step);
    return status;
  };
  REQUIRE_OK(forward(watched->get(), nullptr, &own));
  RoutedInput routed{routing->ids, routing->weights};
  REQUIRE_OK(forward(engine->get(), &routed, &given));
  CHECK(std::memcmp(own.data(), given.data(), own.size() * sizeof(float)) == 0);

  std::vector<int32_t> bad = routing->ids;
  bad[4] = bad[3];
  routed.ids = bad;
  CHECK_THAT(std::string(forward(engine->get(), &routed, &given).message()),
             Catch::Contains("comes twice"));
  bad[4] = 16;
  CHECK_THAT(std::string(forward(engine->get(), &routed, &given).message()),
             Catch::Contains("does not exist"));
  routed.ids = absl::MakeConstSpan(routing->ids).subspan(1);
  CHECK_THAT(std::string(forward(engine->get(), &routed, &given).message()),
             Catch::Contains("takes [5, 3]"));
}

TEST_CASE("an engine that simulates multiplies nothing and says so") {
  EngineOptions options = Options("on-demand", 0.5);
  options.simulate = true;
  options.clock = ClockKind::kWall;
  CHECK_THAT(std::string(Engine::Create(Source(), options).status().message()),
             Catch::Contains("simulate"));
  options.clock = ClockKind::kVirtual;
  auto engine = Engine::Create(Source(), options);
  REQUIRE_OK(engine.status());
  auto step = (*engine)->BeginStep({Phase::kDecode, 1});
  REQUIRE_OK(step.status());
  CHECK((*engine)->Forward(*step, 0, {}, {}).code() == absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace moert
