// Engines that copy from each other what they miss give what one alone gives: on one device, and on
// two.
#include "moert/parallel/peer_tier.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "device_step.h"
#include "moert/source/pinned_source.h"
#include "peer_access.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/shards.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

constexpr int64_t kRows = 4;

SyntheticShape Shape() {
  SyntheticShape shape;
  shape.experts = 32;
  shape.top_k = 4;
  shape.hidden = 128;
  shape.intermediate = 256;
  return shape;
}

EngineOptions Options(int device, double fraction, std::shared_ptr<PeerTier> peers) {
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.device = device;
  options.budget = Budget::Fraction(fraction);
  options.max_tokens_per_forward = kRows;
  options.threads = 1;
  options.peers = std::move(peers);
  return options;
}

/// One engine with its rows.
struct Host {
  Host(const std::shared_ptr<const ExpertSource>& source, const EngineOptions& options,
       uint64_t seed)
      : process(Shape().hidden, seed) {
    auto made = Engine::Create(source, options);
    REQUIRE_OK(made.status());
    engine = *std::move(made);
    REQUIRE(cudaSetDevice(options.device) == cudaSuccess);
    device = std::make_unique<DeviceRowsBuffer>(kRows * Shape().hidden);
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
  }
  std::vector<float> Step() {
    std::vector<float> outputs;
    REQUIRE_OK(RunDeviceStep(engine.get(), Phase::kDecode, process.Next(kRows), kRows, device.get(),
                             &outputs));
    return outputs;
  }

  std::unique_ptr<Engine> engine;
  std::unique_ptr<DeviceRowsBuffer> device;
  HiddenProcess process;
};

TEST_CASE("misses come from engines that hold them, and outputs stay as they are") {
  int devices = 0;
  REQUIRE(cudaGetDeviceCount(&devices) == cudaSuccess);
  const auto source = std::make_shared<SyntheticSource>(Shape());
  auto pinned = PinRecords(source, {});
  REQUIRE_OK(pinned.status());
  // Read by engines themselves, or lying in pinned memory; each pool changes in every layer.
  for (const bool in_place : {false, true}) {
    for (int second = 0; second < std::min(2, devices); ++second) {
      CAPTURE(in_place, second);
      const std::shared_ptr<const ExpertSource> from =
          in_place ? *pinned : std::static_pointer_cast<const ExpertSource>(source);
      const auto peers = MakePeerTier();
      std::vector<std::vector<float>> expected[2];
      for (int h = 0; h < 2; ++h) {
        Host alone(from, Options(0, 0.3, nullptr), static_cast<uint64_t>(h + 1));
        for (int s = 0; s < 12; ++s) expected[h].push_back(alone.Step());
      }
      {
        Host a(from, Options(0, 0.3, peers), 1), b(from, Options(second, 0.3, peers), 2);
        for (int s = 0; s < 12; ++s) {
          CHECK(a.Step() == expected[0][static_cast<size_t>(s)]);
          CHECK(b.Step() == expected[1][static_cast<size_t>(s)]);
        }
        if (second == 0 || DevicesReachEachOther()) CHECK(StatsOf(*peers).copies > 20);
        // A smaller pool gives memory back that others might have read.
        REQUIRE_OK(a.engine->SetBudget(Budget::Fraction(0.2)));
        b.Step();
        a.Step();
      }
      const int64_t copies = StatsOf(*peers).copies;
      Host again(from, Options(0, 0.3, peers), 1);
      for (int s = 0; s < 3; ++s) CHECK(again.Step() == expected[0][static_cast<size_t>(s)]);
      CHECK(StatsOf(*peers).copies == copies);  // the others are gone
    }
  }
}

TEST_CASE("outputs of two engines", "[.]") {
  const auto pinned = PinRecords(std::make_shared<SyntheticSource>(Shape()), {});
  REQUIRE_OK(pinned.status());
  const auto peers = MakePeerTier();
  Host a(*pinned, Options(0, 0.3, peers), 1), b(*pinned, Options(1, 0.3, peers), 2);
  for (int s = 0; s < 12; ++s) {
    PrintBits("the first", a.Step());
    PrintBits("the second", b.Step());
  }
  const bool forbidden = std::getenv("NCCL_P2P_DISABLE") != nullptr;
  CHECK((StatsOf(*peers).copies > 0) == (!forbidden && DevicesReachEachOther()));
}

TEST_CASE("engines on two devices do without each other where peer access is forbidden") {
  int devices = 0;
  REQUIRE(cudaGetDeviceCount(&devices) == cudaSuccess);
  if (devices < 2) return;
  CHECK(PrintedBy("outputs of two engines", false) == PrintedBy("outputs of two engines", true));
}

TEST_CASE("engines of a peer tier are over one source, whole") {
  const auto peers = MakePeerTier();
  const auto source = std::make_shared<SyntheticSource>(Shape());
  auto one = Engine::Create(source, Options(0, 0.3, peers));
  REQUIRE_OK(one.status());
  const auto refused = [&](const std::shared_ptr<const ExpertSource>& other, const Shard& shard) {
    EngineOptions options = Options(0, 0.3, peers);
    options.shard = shard;
    return std::string(Engine::Create(other, options).status().message());
  };
  CHECK(refused(std::make_shared<SyntheticSource>(Shape()), {}).find("one source") !=
        std::string::npos);
  CHECK(refused(source, Experts(0, 16, true)).find("one source") != std::string::npos);
}

}  // namespace
}  // namespace moert::test
