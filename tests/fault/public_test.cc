// Public functions beside the engine's when memory or threads run out: an error, never an
// exception, and what one rank of a group suffers the others hear at once.
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "base/file_writer.h"
#include "base/folder.h"
#include "checkpoint/other_files.h"
#include "fault/inject.h"
#include "fmt/format.h"
#include "moert/parallel/expert_parallel.h"
#include "moert/tools/auto_strategy.h"
#include "moert/tools/version_choice.h"
#include "moert/tools/warm_start.h"
#include "support/catch.h"
#include "support/measured_calibration.h"
#include "support/opaque_fixture.h"
#include "support/synthetic_source.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

EngineOptions Options() {
  EngineOptions options;
  options.threads = 1;
  options.budget = Budget::Fraction(0.5);
  options.max_tokens_per_forward = 4;
  return options;
}

bool MayFail(const absl::Status& status) {
  return status.ok() || status.code() == absl::StatusCode::kResourceExhausted;
}

/// Runs `call` with its n-th call of a kind failing, and every later one if `lasting`, for n until
/// none is left.
void Sweep(const char* what, int kind, const std::function<absl::Status()>& call) {
  const absl::StatusCode normal = call().code();
  for (const bool lasting : {false, true}) {
    int64_t n = 1;
    for (;; n += 1 + n / 60) {
      INFO(what << ": " << fault_name(kind) << " " << n << (lasting ? " and later" : ""));
      const int64_t blocks = fault_live_blocks();
      fault_arm(kind, n, lasting);
      absl::Status status = call();
      const bool failed = fault_disarm() > 0;
      CHECK((status.code() == normal || MayFail(status)));
      status = absl::OkStatus();  // its message takes blocks
      CHECK(fault_live_blocks() == blocks);
      if (!failed) break;
    }
    CHECK(n > 1);
  }
  CHECK(call().code() == normal);
}

TEST_CASE("functions that make things") {
  const SyntheticSource source{SyntheticShape{}};
  EngineOptions options = Options();
  options.strategy = "auto";
  Sweep("auto", FAULT_MALLOC, [&] { return ChooseStrategy(source, options).status(); });
  const test::TempDir dir;
  const Calibration calibration =
      test::MeasuredCalibration(source.model(), {"w8a16_g128", "w4a16_g128"}, 0.1);
  test::WriteFile(dir / "calibration", CalibrationToJson(calibration));
  options.strategy = "auto:loss=0.01,calibration=" + dir / "calibration";
  Sweep("auto within a loss", FAULT_MALLOC,
        [&] { return ChooseStrategy(source, options).status(); });
  Calibration unmeasured = calibration;
  unmeasured.probe_tokens = 0;
  Sweep("predicted loss", FAULT_MALLOC,
        [&] { return PredictVersionLoss(unmeasured, source, 0).status(); });

  const test::OpaqueModel model;
  const OpaqueWeights weights = model.InMemory();
  Sweep("opaque source", FAULT_MALLOC, [&] {
    try {  // the copies of the arguments are the caller's
      MoeModelSpec spec = model.spec;
      OpaqueWeights own = weights;
      return MakeOpaqueSource("toy", std::move(spec), std::move(own)).status();
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("");
    }
  });
  Sweep("groups", FAULT_MALLOC, [] { return MakeThreadCollectives(3, 1'000'000'000).status(); });
  const std::vector<Shard> shards = {
      {.first_expert = 0, .num_experts = 4},
      {.first_expert = 4, .num_experts = 4, .shared_experts = false}};
  Sweep("shards", FAULT_MALLOC, [&] { return CheckShards(source.model(), shards); });
}

/// ResourceExhausted where `call` finds no memory.
absl::Status Tried(const std::function<void()>& call) {
  try {
    call();
    return absl::OkStatus();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("");
  }
}

TEST_CASE("folders are listed and removed, or not, where memory runs out") {
  const test::TempDir dir;
  const std::string full = dir / "a folder whose name takes a block";
  REQUIRE(::mkdir(full.c_str(), 0700) == 0);
  for (const char* name : {"a file whose name takes a block", "another file with such a name"}) {
    test::WriteFile(full + "/" + name, "x");
  }
  Sweep("names", FAULT_MALLOC, [&] { return Tried([&] { (void)FolderNames(full); }); });
  Sweep("other files", FAULT_MALLOC, [&] { return Tried([&] { (void)OtherFiles(full); }); });
  Sweep("an unfinished folder", FAULT_MALLOC, [&] {
    return Tried([&] {
      const auto folder = AtomicDirectory::Create(dir / "a pack whose name takes a block");
      if (folder.ok()) (void)FileWriter::Create((*folder)->path() + "/a file of this pack");
    });
  });
  CHECK(RemoveTree(full) == 0);
  CHECK(FolderNames(full).status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE("a warm start stops where memory or threads run out") {
  auto engine = Engine::Create(std::make_shared<SyntheticSource>(SyntheticShape{}), Options());
  REQUIRE_OK(engine.status());
  const std::vector<ExpertKey> order = WarmStart::ByCounts({{1, 2}, {3, 4}, {5, 6}});
  for (const int kind : {FAULT_MALLOC, FAULT_THREAD}) {
    for (const bool lasting : {false, true}) {
      for (int64_t n = 1; n <= 60; ++n) {
        INFO(fault_name(kind) << " " << n << (lasting ? " and later" : ""));
        std::vector<ExpertKey> own = order;
        fault_arm(kind, n, lasting);
        {
          const auto warm = WarmStart::Create(engine->get(), std::move(own), {.in_flight = 2});
          CHECK(MayFail(warm.status()));
          if (warm.ok()) std::this_thread::sleep_for(std::chrono::milliseconds(3));
        }
        fault_disarm();
      }
    }
  }
  // The engine still answers.
  auto step = (*engine)->Begin({Phase::kDecode, 1});
  REQUIRE_OK(step.status());
  CHECK(step->End().ok());
}

/// Two ranks go through a step of one layer, each on a thread, while the n-th allocation of both
/// fails, or all from it on. The first answers of each; *failed: whether one failed.
std::array<absl::Status, 2> TwoRanks(const std::shared_ptr<const ExpertSource>& source,
                                     TokenPlacement placement, int64_t n, bool lasting,
                                     bool* failed) {
  auto made = MakeThreadCollectives(2, 20'000'000'000);
  REQUIRE_OK(made.status());
  const std::array<std::shared_ptr<Collectives>, 2> group = {std::move((*made)[0]),
                                                             std::move((*made)[1])};
  const std::array<Shard, 2> shards = {
      Shard{.first_expert = 0, .num_experts = 4},
      Shard{.first_expert = 4, .num_experts = 4, .shared_experts = false}};
  const int64_t hidden = source->model().layers[0].hidden;
  const std::vector<float> x(static_cast<size_t>(hidden), 0.25f);
  std::array<std::vector<float>, 2> y = {x, x};
  const std::array<int32_t, 2> ids = {1, 6};
  const std::array<float, 2> weights = {0.5f, 0.5f};
  RoutedInput routing;
  routing.ids = ids;
  routing.weights = weights;
  const auto run = [&](int r) -> absl::Status {
    auto rank = ExpertParallel::Create(source, Options(), shards, group[r]);
    if (!rank.ok()) return rank.status();
    const auto step = (*rank)->BeginStep({Phase::kDecode, 1}, placement);
    if (!step.ok()) return step.status();
    absl::Status status = (*rank)->Forward(*step, 0, {x.data(), DType::kF32, 1, hidden, hidden},
                                           &routing, {y[r].data(), DType::kF32, 1, hidden, hidden});
    status.Update((*rank)->EndStep(*step));
    return status;
  };
  std::array<absl::Status, 2> statuses;
  std::atomic<bool> go = false;
  std::thread other([&] {
    go.wait(false);
    statuses[1] = run(1);
  });
  fault_arm(FAULT_MALLOC, n, lasting);
  go = true;
  go.notify_one();
  statuses[0] = run(0);
  other.join();
  *failed = fault_disarm() > 0;
  return statuses;
}

TEST_CASE("a rank without memory fails, and the others with it") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{});
  for (const TokenPlacement placement : {TokenPlacement::kReplicated, TokenPlacement::kPerRank}) {
    for (const bool lasting : {false, true}) {
      for (int64_t n = 1;; n += 1 + n / 60) {
        INFO("placement " << static_cast<int>(placement) << ": allocation " << n
                          << (lasting ? " and later" : ""));
        bool failed = false;
        const auto begin = std::chrono::steady_clock::now();
        const auto statuses = TwoRanks(source, placement, n, lasting, &failed);
        CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
        for (const absl::Status& status : statuses) {
          INFO(status.ToString());
          CHECK(MayFail(status));
        }
        if (!failed) break;
      }
    }
  }
}

}  // namespace
}  // namespace moert
