// Strategies whose decisions the device takes part in, against the CPU backend: on the virtual
// clock both see the same transfers, so that with the same inputs they must count the same and
// answer the same within the arithmetic's tolerance.
#include "device_step.h"
#include "fmt/format.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

constexpr int64_t kRows = 6;
constexpr int kSteps = 40;

SyntheticShape Shape() {
  SyntheticShape shape;
  shape.layers = 3;
  shape.experts = 24;
  shape.top_k = 4;
  shape.hidden = 128;
  shape.intermediate = 96;
  shape.gate_scale = 0.05f;
  shape.renormalize = true;
  shape.low_version = true;
  return shape;
}

struct Run {
  std::vector<float> outputs;
  EngineStats stats;
  int64_t layer_calls = 0;
};

/// Layers whose inputs do not depend on outputs: what differs in the last bits does not grow.
Run Drive(BackendKind backend, const std::string& strategy, double budget, double link_gbps) {
  EngineOptions options;
  options.backend = backend;
  options.strategy = strategy;
  options.budget = Budget::Fraction(budget);
  options.max_tokens_per_forward = kRows;
  options.clock = ClockKind::kVirtual;
  options.link_gbps = link_gbps;
  options.threads = 1;
  auto engine = Engine::Create(std::make_shared<SyntheticSource>(Shape()), options);
  REQUIRE_OK(engine.status());
  const int64_t hidden = Shape().hidden;
  HiddenProcess process(hidden, 17);
  DeviceRowsBuffer device(kRows * hidden);
  std::vector<int64_t> requests(kRows);
  Run run;
  for (int s = 0; s < kSteps; ++s) {
    StepInfo info;
    info.phase = s % 10 == 0 ? Phase::kPrefill : Phase::kDecode;
    info.rows = kRows;
    info.stream = device.stream();
    // Rows come, go and move; in every third step two are of one request.
    for (int64_t r = 0; r < kRows; ++r) requests[r] = 100 + (r + s / 5) % 9;
    if (s % 3 == 0) requests[1] = requests[4];
    if (s % 7 != 6) info.request_ids = requests;
    auto step = (*engine)->BeginStep(info);
    REQUIRE_OK(step.status());
    for (int l = 0; l < Shape().layers; ++l) {
      std::vector<float> x = process.Next(kRows);
      std::vector<float> y(x.size());
      const auto forward = [&](float* from, float* to) {
        REQUIRE_OK((*engine)->Forward(*step, l, {from, DType::kF32, kRows, hidden, hidden},
                                      {to, DType::kF32, kRows, hidden, hidden}));
      };
      if (backend == BackendKind::kCuda) {
        device.Set(x);
        forward(device.x(), device.y());
        y = device.Get();
      } else {
        forward(x.data(), y.data());
      }
      run.outputs.insert(run.outputs.end(), y.begin(), y.end());
      ++run.layer_calls;
    }
    REQUIRE_OK((*engine)->EndStep(*step));
  }
  run.stats = (*engine)->stats();
  return run;
}

void CheckSame(const Run& device, const Run& cpu) {
  const std::vector<double> reference(cpu.outputs.begin(), cpu.outputs.end());
  CHECK(RelativeError(device.outputs, reference) < 5e-3);
  const EngineStats& a = device.stats;
  const EngineStats& b = cpu.stats;
  CHECK(a.lookups == b.lookups);
  CHECK(a.hits_resident == b.hits_resident);
  CHECK(a.hits_prefetched == b.hits_prefetched);
  CHECK(a.late == b.late);
  CHECK(a.loads == b.loads);
  CHECK(a.low_loads == b.low_loads);
  CHECK(a.low_answers == b.low_answers);
  CHECK(a.evictions == b.evictions);
  CHECK(a.bytes_loaded == b.bytes_loaded);
  CHECK(a.prefetch_issued == b.prefetch_issued);
  CHECK(a.prefetch_top_score == b.prefetch_top_score);
  CHECK(a.slots == b.slots);
  CHECK(a.slots_substituted == b.slots_substituted);
  CHECK(a.model_lookups == b.model_lookups);
  CHECK(a.model_hits == b.model_hits);
  CHECK(a.mass == Approx(b.mass).epsilon(1e-5));
  CHECK(a.mass_substituted == Approx(b.mass_substituted).epsilon(1e-4));
  CHECK(a.worst_slot_share == Approx(b.worst_slot_share));
  CHECK(a.worst_mass_share == Approx(b.worst_mass_share).epsilon(1e-4));
}

TEST_CASE("importance: the rule runs in the device's router and decides as the CPU's") {
  for (const char* keys :
       {"alpha=0.3", "alpha=0.6,second_pass=1", "alpha=0.6,max_slots=0.05", "alpha=0",
        "alpha=0.6,max_mass=0.02,phase=all", "alpha=0.5,weights=displaced"}) {
    const std::string strategy =
        fmt::format("importance:{},scheme=bf16,cpu=0,predict=gate", keys);
    INFO(strategy);
    const Run cpu = Drive(BackendKind::kCpu, strategy, 0.4, 0.2);
    const Run device = Drive(BackendKind::kCuda, strategy, 0.4, 0.2);
    CheckSame(device, cpu);
    if (std::string(keys) == "alpha=0") {
      CHECK(device.stats.slots_substituted == 0);
    } else {
      CHECK(device.stats.slots_substituted > 20);
    }
    // The routing comes back once a call; no call brings the rows to the host for their rule.
    CHECK(device.stats.host_syncs <= device.layer_calls);
  }
}

TEST_CASE("fate: transfers in two schemes") {
  for (const char* keys : {"rho=0.4", "rho=0.4,low_hits=keep", "rho=0.4,miss_bits=low",
                           "rho=1,miss_bits=low,low_hits=keep"}) {
    const std::string strategy = fmt::format("fate:scheme=bf16,low=low,control=0,{}", keys);
    INFO(strategy);
    const Run cpu = Drive(BackendKind::kCpu, strategy, 0.4, 0.2);
    const Run device = Drive(BackendKind::kCuda, strategy, 0.4, 0.2);
    CheckSame(device, cpu);
    CHECK(device.stats.low_loads > 0);
    CHECK(device.stats.low_loads < device.stats.loads + device.stats.prefetch_issued);
  }
}

}  // namespace
}  // namespace moert::test
