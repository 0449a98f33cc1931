// Bounds against exhaustive search and by hand.
#include "cli/workload/oracles.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "cli/workload/workload_trace.h"
#include "moert/engine.h"
#include "moert/tools/replay.h"
#include "tests/support/catch.h"

namespace moert::cli {
namespace {

/// A trace from a table: one token a step, one layer call after another.
class TableTrace final : public TraceReader {
 public:
  TableTrace(int layers, int experts, int top_k, std::vector<std::vector<int32_t>> ids)
      : ids_(std::move(ids)) {
    for (int l = 0; l < layers; ++l) {
      MoeLayerSpec layer;
      layer.model_layer = l;
      layer.num_experts = experts;
      layer.hidden = layer.intermediate = 64;
      layer.routing.top_k = top_k;
      header_.model.layers.push_back(layer);
    }
    header_.versions.push_back({"bf16", std::vector(layers, std::vector<int64_t>(experts, 4096))});
    weights_.assign(top_k, 0.5f);
  }
  const TraceHeader& header() const override { return header_; }
  absl::Status Rewind() override {
    at_ = 0;
    return absl::OkStatus();
  }
  absl::StatusOr<const TraceCall*> Next() override {
    if (at_ == ids_.size()) return nullptr;
    const int layers = header_.model.num_layers();
    call_ = {};
    call_.step = static_cast<int64_t>(at_) / layers;
    call_.phase = Phase::kDecode;
    call_.layer = static_cast<int>(at_) % layers;
    call_.tokens = 1;
    call_.ids = ids_[at_++];
    call_.weights = weights_;
    return &call_;
  }

 private:
  TraceHeader header_;
  std::vector<std::vector<int32_t>> ids_;
  std::vector<float> weights_;
  size_t at_ = 0;
  TraceCall call_;
};

std::vector<std::vector<int32_t>> RandomIds(int calls, int experts, int k, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<std::vector<int32_t>> ids;
  for (int c = 0; c < calls; ++c) {
    std::set<int32_t> chosen;
    while (static_cast<int>(chosen.size()) < k) {
      chosen.insert(static_cast<int32_t>(std::min(rng() % experts, rng() % experts)));
    }
    ids.emplace_back(chosen.begin(), chosen.end());
  }
  return ids;
}

/// The most hits of any sequence of decisions: all sets of what is kept after every call.
int64_t BestHits(const std::vector<std::vector<int32_t>>& calls, int experts, int capacity) {
  std::map<uint32_t, int64_t> best;  // held set -> hits so far
  for (uint32_t held = 0; held < 1u << experts; ++held) {
    if (__builtin_popcount(held) <= capacity) best[held] = 0;
  }
  for (const auto& call : calls) {
    uint32_t used = 0;
    for (const int32_t e : call) used |= 1u << e;
    std::map<uint32_t, int64_t> after;
    for (const auto& [held, hits] : best) {
      const int64_t now = hits + __builtin_popcount(held & used);
      const uint32_t available = held | used;
      for (uint32_t keep = available;; keep = (keep - 1) & available) {
        if (__builtin_popcount(keep) <= capacity) {
          int64_t& slot = after.emplace(keep, -1).first->second;
          slot = std::max(slot, now);
        }
        if (keep == 0) break;
      }
    }
    best = std::move(after);
  }
  int64_t most = 0;
  for (const auto& [held, hits] : best) most = std::max(most, hits);
  return most;
}

TEST_CASE("Belady's bound is what exhaustive search finds") {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    for (const int capacity : {1, 2, 3, 4}) {
      const auto ids = RandomIds(14, 7, 2, seed);
      TableTrace trace(1, 7, 2, ids);
      const auto history = RoutingHistory::Read(&trace, 0);
      REQUIRE_OK(history.status());
      const Oracles o = ComputeOracles(*history, capacity);
      const double best = static_cast<double>(BestHits(ids, 7, capacity)) / (14 * 2);
      INFO("seed " << seed << " capacity " << capacity);
      CHECK(o.belady_layer == Approx(best));
      CHECK(o.belady_global == Approx(best));
      CHECK(o.lru <= o.belady_layer);
    }
  }
}

TEST_CASE("one pool for all layers bounds any division of it") {
  for (const uint64_t seed : {1, 2, 3}) {
    TableTrace trace(4, 16, 3, RandomIds(400, 16, 3, seed));
    const auto history = RoutingHistory::Read(&trace, 10);
    REQUIRE_OK(history.status());
    double previous = -1;
    for (const int64_t slots : {8, 16, 24, 32, 48, 64}) {
      const Oracles o = ComputeOracles(*history, slots);
      CHECK(o.belady_global >= o.belady_layer);
      CHECK(o.belady_layer >= o.lru);
      CHECK(o.belady_layer > previous);
      previous = o.belady_layer;
    }
    CHECK(previous == 1);
  }
}

TEST_CASE("the LRU of the bounds is the engine's") {
  const Shape shape = *ParseShape("qwen3-30b:3");
  StepPlan plan;
  plan.steps = 120;
  auto trace = MakeWorkloadTrace(shape, "steady", 1, plan);
  REQUIRE_OK(trace.status());
  EngineOptions options;
  options.clock = ClockKind::kVirtual;
  options.simulate = true;
  options.threads = 1;
  options.budget = Budget::Fraction(0.4);
  options.max_tokens_per_forward = 1;
  auto engine = Engine::Create(MakeSizesSource((*trace)->header()), options);
  REQUIRE_OK(engine.status());
  REQUIRE_OK(Replay(trace->get(), engine->get(), {}).status());
  const auto history = RoutingHistory::Read(trace->get(), 0);
  REQUIRE_OK(history.status());
  const Oracles o = ComputeOracles(*history, (*engine)->memory().slots);
  CHECK((*engine)->stats().hit_ratio() == Approx(o.lru).margin(0.003));
  CHECK((*engine)->stats().hit_ratio() < o.belady_layer);
}

TEST_CASE("the high set answers what its experts were asked") {
  // Expert 0 always, expert 1 in every second call, 2 and 3 in the others.
  std::vector<std::vector<int32_t>> ids;
  for (int i = 0; i < 8; ++i) ids.push_back({0, i % 2 == 0 ? 1 : 2 + i / 2 % 2});
  TableTrace trace(1, 4, 2, ids);
  const auto history = RoutingHistory::Read(&trace, 0);
  REQUIRE_OK(history.status());
  CHECK(ComputeOracles(*history, 1).high_set == Approx(0.5));
  CHECK(ComputeOracles(*history, 2).high_set == Approx(0.75));
  CHECK(ComputeOracles(*history, 4).high_set == Approx(1));
}

TEST_CASE("perfect prefetch hides what fits a layer") {
  // Two layers, every call misses both of its experts: nothing is used twice.
  std::vector<std::vector<int32_t>> ids;
  for (int s = 0; s < 4; ++s) {
    for (int l = 0; l < 2; ++l) ids.push_back({2 * s, 2 * s + 1});
  }
  TableTrace trace(2, 8, 2, ids);
  const auto history = RoutingHistory::Read(&trace, 0);
  REQUIRE_OK(history.status());
  CHECK(PerfectPrefetch(*history, 4, 1.0, 0.5).lru_ms == Approx(2.0));   // all hidden
  CHECK(PerfectPrefetch(*history, 4, 1.0, 0.75).lru_ms == Approx(3.0));  // half a layer shows
  // The first call's experts are there from the start.
  CHECK(PerfectPrefetch(*history, 4, 1.0, 2.0).belady_ms == Approx((2 * 1.0 + 6 * 4.0) / 4));
}

}  // namespace
}  // namespace moert::cli
