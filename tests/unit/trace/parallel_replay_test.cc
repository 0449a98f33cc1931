// Several simulated GPUs: one is the plain replay; more have shorter layers, pay for exchanges, and
// compute every expert once.
#include "moert/parallel/parallel_replay.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "moert/engine.h"
#include "moert/parallel/shard.h"
#include "support/catch.h"
#include "support/run_engine.h"
#include "support/synthetic_source.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::HiddenProcess;
using test::RunStep;
using test::SyntheticShape;
using test::SyntheticSource;
using test::TempDir;

EngineOptions Options(double share) {
  EngineOptions options;
  options.strategy = "on-demand";
  options.budget = Budget::Fraction(share);
  options.clock = ClockKind::kVirtual;
  options.link_gbps = 0.05;
  options.threads = 1;
  options.max_tokens_per_forward = 32;
  options.profile.compute = {{1, 2e9}, {8, 1.5e9}};
  options.profile.decode_layer_ns = 20'000;
  return options;
}

/// A trace of 12 steps, prompts of 20 tokens among them.
std::unique_ptr<TraceReader> Record(const std::string& path,
                                    const std::shared_ptr<const ExpertSource>& source) {
  {
    auto file = CreateTrace(path, MakeTraceHeader(*source, 32));
    REQUIRE_OK(file.status());
    EngineOptions options = Options(1);
    options.trace = *std::move(file);
    auto engine = Engine::Create(source, options);
    REQUIRE_OK(engine.status());
    HiddenProcess process(64, 5);
    std::vector<float> out;
    for (int s = 0; s < 12; ++s) {
      const Phase phase = s % 6 == 0 ? Phase::kPrefill : Phase::kDecode;
      const int64_t rows = phase == Phase::kPrefill ? 20 : 2;
      REQUIRE_OK(RunStep(engine->get(), phase, process.Next(rows), rows, &out));
    }
  }
  auto trace = OpenTrace(path);
  REQUIRE_OK(trace.status());
  return *std::move(trace);
}

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

TEST_CASE("replay on several GPUs") {
  const TempDir dir;
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{4, 16, 3, 64, 48, 32});
  const auto trace = Record(dir / "t", source);
  const auto run = [&](int gpus, int nodes, PeerLinks links = {}) {
    ParallelReplayOptions options;
    options.gpus = gpus;
    options.nodes = nodes;
    options.links = links;
    options.all_reduce_tokens = 8;
    auto result =
        ReplayParallel(trace.get(), MakeSizesSource(trace->header()), Options(0.25), options);
    REQUIRE_OK(result.status());
    CHECK(result->whole.decode_ms.size() == 10);
    CHECK(result->whole.prefill_ms.size() == 2);
    return *std::move(result);
  };
  const ParallelReplayResult one = run(1, 1);
  {
    EngineOptions simulate = Options(0.25);
    simulate.simulate = true;
    auto engine = Engine::Create(MakeSizesSource(trace->header()), simulate);
    REQUIRE_OK(engine.status());
    auto plain = Replay(trace.get(), engine->get(), {});
    REQUIRE_OK(plain.status());
    CHECK(one.whole.decode_ms == plain->decode_ms);
    CHECK(one.whole.prefill_ms == plain->prefill_ms);
    CHECK(one.exchange_ms == 0);
    CHECK(one.imbalance == Approx(1));
  }
  PeerLinks free_links;
  free_links.peer_bytes_per_s = free_links.node_bytes_per_s = 1e15;
  free_links.peer_latency_ns = free_links.node_latency_ns = 0;
  const ParallelReplayResult four = run(4, 1, free_links);
  // Four links and four caches, each with a quarter of its own experts: less to wait for.
  CHECK(Mean(four.whole.decode_ms) < Mean(one.whole.decode_ms));
  CHECK(four.imbalance > 1);
  // Every lookup is one rank's.
  int64_t lookups = 0;
  for (const EngineStats& rank : four.ranks) lookups += rank.lookups;
  CHECK(lookups == one.ranks[0].lookups);
  // Exchanges cost what the links say; decode steps all-reduce, prompts send rows.
  PeerLinks slow = free_links;
  slow.peer_latency_ns = 100'000;
  const ParallelReplayResult paying = run(4, 1, slow);
  const double calls_ms =
      4 * (10 * 0.1 + 2 * 2 * 0.1);  // layers x (decode + prompts there and back)
  CHECK(paying.exchange_ms - four.exchange_ms == Approx(calls_ms).epsilon(1e-6));
  CHECK(Mean(paying.whole.decode_ms) > Mean(four.whole.decode_ms) + 0.39);
  // Across nodes the slower rate counts.
  PeerLinks far = free_links;
  far.node_bytes_per_s = 1e6;
  CHECK(run(2, 2, far).exchange_ms > run(4, 1, far).exchange_ms);

  // The caller chooses the owners: all that is used on one rank is as unbalanced as can be.
  ParallelReplayOptions chosen;
  chosen.gpus = 2;
  chosen.links = free_links;
  const auto replay = [&](const std::vector<std::vector<double>>& loads) {
    auto shards = PlaceExperts(trace->header().model, loads, 2);
    REQUIRE_OK(shards.status());
    chosen.shards = *shards;
    auto result =
        ReplayParallel(trace.get(), MakeSizesSource(trace->header()), Options(0.25), chosen);
    REQUIRE_OK(result.status());
    return *std::move(result);
  };
  std::vector<std::vector<double>> used(4, std::vector<double>(16));
  REQUIRE_OK(trace->Rewind());
  for (auto call = trace->Next(); call.ok() && *call != nullptr; call = trace->Next()) {
    for (const int32_t e : (*call)->ids) ++used[(*call)->layer][e];
  }
  REQUIRE_OK(trace->Rewind());
  const ParallelReplayResult balanced = replay(used);
  // The eight most used of each layer on one rank.
  std::vector<Shard> skewed(2);
  for (const std::vector<double>& layer : used) {
    std::vector<int32_t> order(16);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return layer[a] > layer[b]; });
    std::sort(order.begin(), order.begin() + 8);
    std::sort(order.begin() + 8, order.end());
    skewed[0].experts.emplace_back(order.begin(), order.begin() + 8);
    skewed[1].experts.emplace_back(order.begin() + 8, order.end());
  }
  skewed[1].shared_experts = false;
  chosen.shards = skewed;
  const auto unbalanced =
      ReplayParallel(trace.get(), MakeSizesSource(trace->header()), Options(0.25), chosen);
  REQUIRE_OK(unbalanced.status());
  CHECK(balanced.imbalance < unbalanced->imbalance);
  chosen.shards.resize(3);
  CHECK(std::string(
            ReplayParallel(trace.get(), MakeSizesSource(trace->header()), Options(0.25), chosen)
                .status()
                .message())
            .find("3 shards for 2 GPUs") != std::string::npos);

  ParallelReplayOptions bad;
  bad.gpus = 17;
  const auto refused =
      ReplayParallel(trace.get(), MakeSizesSource(trace->header()), Options(0.25), bad);
  CHECK(std::string(refused.status().message()).find("layer 0 has 16 experts") !=
        std::string::npos);
}

TEST_CASE("replay with experts that several GPUs own") {
  const TempDir dir;
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{4, 16, 3, 64, 48, 32});
  const auto trace = Record(dir / "t", source);
  ParallelReplayOptions options;
  options.gpus = 2;
  options.all_reduce_tokens = 8;
  const auto replay = [&]() -> absl::StatusOr<ParallelReplayResult> {
    return ReplayParallel(trace.get(), MakeSizesSource(trace->header()), Options(0.5), options);
  };
  const auto owned = [](const std::function<std::vector<int32_t>(int)>& owners) {
    std::vector<std::vector<int32_t>> layer;
    for (int e = 0; e < 16; ++e) layer.push_back(owners(e));
    return ExpertPlacement{2, std::vector<std::vector<std::vector<int32_t>>>(4, layer)};
  };
  // With one owner each as over shards.
  const auto dealt = replay();
  REQUIRE_OK(dealt.status());
  options.placement = owned([](int e) { return std::vector<int32_t>{e % 2}; });
  const auto same = replay();
  REQUIRE_OK(same.status());
  CHECK(same->whole.decode_ms == dealt->whole.decode_ms);
  CHECK(same->whole.prefill_ms == dealt->whole.prefill_ms);
  CHECK(same->exchange_ms == dealt->exchange_ms);
  // One rank has nearly all of them; then it shares them with the other, token by token.
  options.placement = owned([](int e) { return std::vector<int32_t>{e == 0 ? 1 : 0}; });
  const auto skewed = replay();
  REQUIRE_OK(skewed.status());
  options.placement = owned([](int e) {
    return e == 0 ? std::vector<int32_t>{1} : std::vector<int32_t>{0, 1};
  });
  const auto shared = replay();
  REQUIRE_OK(shared.status());
  CHECK(shared->imbalance < skewed->imbalance);
  CHECK(Mean(shared->whole.prefill_ms) < Mean(skewed->whole.prefill_ms));
  for (const EngineStats& rank : shared->ranks) CHECK(rank.lookups > 0);

  options.gpus = 4;
  CHECK(std::string(replay().status().message()).find("a placement of 2 ranks for 4 GPUs") !=
        std::string::npos);
  options.gpus = 2;
  options.placement.owners[1][3].clear();
  CHECK(std::string(replay().status().message()).find("layer 1 expert 3") != std::string::npos);
}

TEST_CASE("rates between GPUs come from a profile's file") {
  const TempDir dir;
  test::WriteFile(dir / "p.json", R"({"peer_bytes_per_s": 3e11, "node_latency_ns": 5000})");
  const auto links = LoadPeerLinks(dir / "p.json");
  REQUIRE_OK(links.status());
  CHECK(links->peer_bytes_per_s == 3e11);
  CHECK(links->node_latency_ns == 5000);
  CHECK(links->peer_latency_ns == PeerLinks{}.peer_latency_ns);
  test::WriteFile(dir / "bad.json", R"({"peer_bytes_per_s": "fast"})");
  CHECK(std::string(LoadPeerLinks(dir / "bad.json").status().message())
            .find("field 'peer_bytes_per_s' must be a number") != std::string::npos);
}

}  // namespace
}  // namespace moert
