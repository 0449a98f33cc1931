// Packs and replays when memory or threads run out: a status, nothing is thrown, and nothing is
// kept.
#include <filesystem>
#include <fstream>
#include <functional>

#include "cli/pack/host_model.h"
#include "fault/inject.h"
#include "host/tokenizer.h"
#include "moert/offline/allocate.h"
#include "moert/offline/calibrate.h"
#include "moert/offline/calibration.h"
#include "moert/offline/encode_matrix.h"
#include "moert/offline/pack.h"
#include "moert/offline/quantize.h"
#include "moert/offline/token_file.h"
#include "moert/offline/versions_within.h"
#include "moert/parallel/parallel_replay.h"
#include "moert/thread_pool.h"
#include "moert/tools/replay.h"
#include "support/catch.h"
#include "support/measured_calibration.h"
#include "support/paths.h"
#include "support/synthetic_source.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;
using test::TempDir;

const std::string kModel = SourceDir() + "/tests/data/architectures/olmoe";

/// The output of a job, where it writes something.
void Remove(const std::string& out) {
  if (out.empty()) return;
  std::filesystem::remove_all(out);
  std::filesystem::remove_all(out + ".partial");
}

/// Lets the n-th call of a kind fail, n = 1 and on, `stride` more each time by which n grows: the
/// same outcome as without, or ResourceExhausted.
void Sweep(const char* name, fault_kind kind, double stride,
           const std::function<absl::Status()>& run, const std::string& out) {
  Remove(out);
  REQUIRE_OK(run());
  for (const bool lasting : {false, true}) {
    for (int64_t n = 1;; n += 1 + static_cast<int64_t>(static_cast<double>(n) * stride)) {
      INFO(name << ": " << fault_name(kind) << " " << n << (lasting ? " and later" : ""));
      Remove(out);
      const int64_t blocks = fault_live_blocks();
      const int descriptors = fault_descriptors();
      absl::StatusCode code = absl::StatusCode::kUnknown;
      bool thrown = false;
      fault_arm(kind, n, lasting);
      try {
        code = run().code();
      } catch (...) {
        thrown = true;
      }
      const bool failed = fault_disarm() > 0;
      CHECK_FALSE(thrown);
      if (code != absl::StatusCode::kOk) CHECK(code == absl::StatusCode::kResourceExhausted);
      CHECK(fault_live_blocks() <= blocks);
      CHECK(fault_descriptors() == descriptors);
      if (!failed) break;
    }
    Remove(out);
    REQUIRE_OK(run());
  }
}

void SweepAll(const char* name, double stride, const std::function<absl::Status()>& run,
              const std::string& out = "") {
  Sweep(name, FAULT_MALLOC, stride, run, out);
  Sweep(name, FAULT_THREAD, 0, run, out);
}

QuantizeJob Job(const TempDir& dir) {
  QuantizeJob job;
  job.model = kModel;
  job.out = dir / "pack";
  job.schemes = *ParseSchemes("w4a16_g128");
  job.method = QuantMethod::kRtn;
  job.threads = 2;
  return job;
}

TEST_CASE("quantizing") {
  const TempDir dir;
  const QuantizeJob job = Job(dir);
  SweepAll(
      "quantize", 0.4, [&] { return RunQuantizeJob(job); }, job.out);
}

TEST_CASE("reading a pack, and verifying it") {
  const TempDir dir;
  const QuantizeJob job = Job(dir);
  REQUIRE_OK(RunQuantizeJob(job));
  ThreadPoolOptions two;
  two.threads = 2;
  const auto pool = CreateThreadPool(two);
  REQUIRE_OK(pool.status());
  SweepAll("info", 0.1, [&] { return ReadPackInfo(job.out).status(); });
  SweepAll("verify", 0.1, [&]() -> absl::Status {
    const auto found = VerifyPack(job.out, Env::Default(), pool->get(), nullptr);
    if (found.ok() && !found->damage.empty()) return absl::DataLossError(found->damage[0]);
    return found.status();
  });
}

TEST_CASE("calibrating") {
  const TempDir dir;
  {
    std::ofstream tokens(dir / "t.u16", std::ios::binary);
    for (int i = 0; i < 16; ++i) tokens.put(static_cast<char>(i)).put(0);
  }
  CalibrateJob job;
  job.model = kModel;
  job.out = dir / "calibration";
  job.token_files = {dir / "t.u16"};
  job.window = 8;
  job.schemes = *ParseSchemes("w4a16_g128");
  job.threads = 2;
  job.open_model = cli::HostModelOpener(nullptr);
  job.method = QuantMethod::kRtn;
  job.probe_tokens = 8;
  const auto run = [&] { return RunCalibrateJob(job); };
  Sweep("calibrate", FAULT_THREAD, 0, run, job.out);
  job.threads = 1;
  Sweep("calibrate", FAULT_MALLOC, 0.3, run, job.out);
}

Calibration Measured() {
  Calibration c;
  c.model.architecture = "test";
  c.schemes = *ParseSchemes("w8a16_g128,w4a16_g128");
  c.tokens = c.window = 100;
  for (int l = 0; l < 2; ++l) {
    MoeLayerSpec layer;
    layer.model_layer = l;
    layer.num_experts = 4;
    layer.hidden = layer.intermediate = 128;
    layer.routing.top_k = 2;
    c.model.layers.push_back(layer);
    LayerCalibration& m = c.layers.emplace_back();
    m.output_norm = 10;
    for (int e = 0; e < 4; ++e) {
      m.selections.push_back(100 + e);
      m.weight_sums.push_back(30);
      for (int b = 0; b < kLinearBlocks; ++b) {
        m.delta.push_back(0.01 * (e + 1));
        m.delta.push_back(0.1 * (e + 1 + b));
      }
    }
  }
  return c;
}

TEST_CASE("allocating") {
  const Calibration calibration = Measured();
  AllocationOptions options;
  options.capacity = CapacityOf(calibration.model, 6);
  options.costs = *LoadCostTable("h200", Env::Default());
  options.solver = AllocationSolver::kRelaxation;
  SweepAll("costs", 0, [&] { return LoadCostTable("h200", Env::Default()).status(); });
  SweepAll("allocate", 0, [&] { return Allocate(calibration, options).status(); });
  const Calibration measured =
      test::MeasuredCalibration(calibration.model, {"w8a16_g128", "w4a16_g128"}, 0.1);
  SweepAll("versions within", 0.3, [&] { return VersionsWithin(measured, 0.01).status(); });
  const Allocation made = *Allocate(calibration, options);
  SweepAll("predict", 0, [&] { return Predict(calibration, options, made.version).status(); });
  SweepAll("size", 0, [&] { return SizeOf(calibration.model, made.version).status(); });
  const std::vector<PackVersion> versions = {made.version};
  SweepAll("layout", 0,
           [&] { return MakeLayoutSource("name", calibration.model, versions).status(); });
}

TEST_CASE("small ones") {
  const RecordLayout layout =
      *MakeRecordLayout(128, 128, ExpertFormat::Uniform(*Scheme::Parse("w4a16_g128")));
  const std::vector<float> weights(128 * 128, 0.5f);
  std::vector<std::byte> record(static_cast<size_t>(layout.bytes));
  std::vector<float> wide;
  SweepAll("schemes", 0, [&] { return ParseSchemes("bf16,w4a16_g128").status(); });
  for (const QuantMethod method : {QuantMethod::kRtn, QuantMethod::kHqq}) {
    SweepAll("encode", 0, [&] { return EncodeMatrix(layout.up, method, weights, record.data()); });
  }
  SweepAll("decode", 0, [&] { return DecodeMatrix(layout.up, record.data(), &wide); });
}

void CheckNoStepIsOpen(Engine* engine) {
  const auto next = engine->BeginStep({Phase::kDecode, 1});
  REQUIRE_OK(next.status());
  for (StepId step = 0; step < *next; ++step) CHECK_FALSE(engine->EndStep(step).ok());
  CHECK(engine->EndStep(*next).ok());
}

TEST_CASE("a tokenizer.json of too many values takes no more than its text") {
  std::string text = R"({"x":[{})";
  for (int i = 0; i < 3'000'000; ++i) text += ",{}";
  text += "]}";
  fault_arm(FAULT_MALLOC, 0, 0);
  const int64_t before = fault_live_bytes();
  const auto tokenizer = host::Tokenizer::Parse(text, "t");
  CHECK(tokenizer.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(tokenizer.status().message()),
             Catch::Contains("more than 3000000 values"));
  CHECK(fault_peak_bytes() - before < 100'000);
}

TEST_CASE("replaying") {
  const TempDir dir;
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{2, 8, 2, 64, 64, 0});
  {
    auto trace = CreateTrace(dir / "t", MakeTraceHeader(*source, 4));
    REQUIRE_OK(trace.status());
    EngineOptions options;
    options.threads = 1;
    options.max_tokens_per_forward = 4;
    options.trace = *std::move(trace);
    auto engine = Engine::Create(source, options);
    REQUIRE_OK(engine.status());
    std::vector<float> x(4 * 64, 0.25f), y(x.size());
    for (int s = 0; s < 3; ++s) {
      const auto step = (*engine)->BeginStep({Phase::kDecode, 4});
      REQUIRE_OK(step.status());
      for (int l = 0; l < 2; ++l) {
        x[static_cast<size_t>(s)] += 0.5f;
        REQUIRE_OK((*engine)->Forward(*step, l, {x.data(), DType::kF32, 4, 64, 64},
                                      {y.data(), DType::kF32, 4, 64, 64}));
      }
      REQUIRE_OK((*engine)->EndStep(*step));
    }
  }
  auto trace = OpenTrace(dir / "t");
  REQUIRE_OK(trace.status());
  const auto sizes = MakeSizesSource((*trace)->header());
  EngineOptions options;
  options.clock = ClockKind::kVirtual;
  options.simulate = true;
  options.strategy = "fate";
  options.budget = Budget::Fraction(0.5);
  options.max_tokens_per_forward = 4;
  options.threads = 1;
  SweepAll("replay", 0.1, [&]() -> absl::Status {
    auto engine = Engine::Create(sizes, options);
    if (!engine.ok()) return engine.status();
    const absl::Status status = Replay(trace->get(), engine->get(), {}).status();
    fault_disarm();
    CheckNoStepIsOpen(engine->get());
    return status;
  });
  ParallelReplayOptions two;
  two.gpus = 2;
  SweepAll("parallel replay", 0.1,
           [&] { return ReplayParallel(trace->get(), sizes, options, two).status(); });
  SweepAll("links", 0, [&] { return LoadPeerLinks("reference").status(); });
}

}  // namespace
}  // namespace moert
