// What the device prefetches under activation-path (kernels/cuda/cache/predict_records.cu),
// executed here over the rows of gpu.served_prefetch_test: paths that recur are brought, others are
// not.
#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "moert/router.h"
#include "moert/strategy.h"
#include "research/strategies/research_strategies.h"
#include "rules/hit_curve.h"
#include "support/catch.h"
#include "support/layer_rows.h"
#include "support/served_call.h"

namespace moert {
namespace {

using cuda::LeavingKey;
using cuda::PrefetchedRecord;
using cuda::ServedExpert;

constexpr float kLeast = 0.2F;  // PredictArgs::least

struct Counts {
  int64_t hits = 0, loads = 0, used = 0, wasted = 0;
};

/// A layer whose blocks the device has, and what it has learned of predictions for it.
class Layer {
 public:
  Layer(int experts, int slots, HitCounts* all)
      : slots_(slots), rows_(experts), bins_(experts, kHitBins), all_(all) {}

  /// scores: [E], of the paths of all tokens; the `most` best may be brought. `shy`: whoever is
  /// likely wanted makes room for nobody, as the rule has it.
  void Predict(const std::vector<float>& scores, int most, int tokens, bool shy) {
    const auto experts = static_cast<int>(rows_.size());
    std::vector<float> sorted = scores;
    std::nth_element(sorted.begin(), sorted.begin() + (most - 1), sorted.end(), std::greater<>());
    const float kth = sorted[most - 1];
    std::vector<double> likely(experts);
    std::vector<int> wishes;
    std::vector<LeavingKey> keys(experts);
    std::vector<uint8_t> held(slots_, 0);
    for (int e = 0; e < experts; ++e) {
      const bool present = rows_[e].slot >= 0;
      const float ratio = scores[e] / std::max(kth, 1e-30F);
      const int bin = HitBin(ratio);
      likely[e] = curve_[bin].Probability(all_[bin].Probability(GuessedHits(ratio)));
      bins_[e] = present ? kHitBins : bin;
      if (present) held[rows_[e].slot] = 1;
      if (!present && likely[e] >= kLeast && scores[e] > 0 && scores[e] >= kth) wishes.push_back(e);
      if (present && (!shy || likely[e] < cuda::LikelyWanted(tokens, kLeast))) {
        keys[e] = cuda::KeyOfLeaving(rows_[e], 0);
      }
    }
    std::stable_sort(wishes.begin(), wishes.end(),
                     [&](int a, int b) { return likely[a] > likely[b]; });
    const std::vector<PrefetchedRecord> places = Places(held, keys);
    for (size_t i = 0; i < std::min({wishes.size(), places.size(), kMost}); ++i) {
      const int victim = places[i].victim;
      if (victim >= 0 && !cuda::PrefetchPays(likely[wishes[i]], likely[victim], 0, 0, inserted_)) {
        break;
      }
      list_.push_back(places[i]);
      list_.back().expert = wishes[i];
    }
    predicted_ = true;
  }

  /// The layer is routed. All that was listed has arrived.
  void Call(const std::vector<int32_t>& counts, Counts* sums) {
    Learn(counts);
    int used = 0, wanted = 0;
    for (const PrefetchedRecord& record : list_) {
      cuda::SettlePrefetch(record, cuda::PrefetchEnd::kArrived, tick_, rows_.data());
      used += counts[record.expert] > 0;
    }
    for (const int32_t count : counts) wanted += count > 0;
    const cuda::ServedCounts call = test::ServeCall(counts, slots_, ++tick_, &rows_);
    const auto brought = static_cast<int>(list_.size());
    inserted_ += (call.copies() + brought - inserted_) / 64;
    list_.clear();
    sums->used += used;
    sums->wasted += brought - used;
    sums->loads += call.misses;
    sums->hits += wanted - call.misses - used;
  }

 private:
  static constexpr size_t kMost = cuda::kMostPrefetched;

  /// Slots of nobody, then those of whom `keys` lets leave, in their order.
  std::vector<PrefetchedRecord> Places(const std::vector<uint8_t>& held,
                                       const std::vector<LeavingKey>& keys) const {
    const auto experts = static_cast<int>(rows_.size());
    std::vector<PrefetchedRecord> places;
    for (int s = 0; s < slots_; ++s) {
      if (held[s] == 0) places.emplace_back().slot = s;
    }
    const size_t free = places.size();
    const LeavingKey never;
    for (const LeavingKey& key : keys) {
      if (key.worth != never.worth) places.emplace_back();
    }
    for (int e = 0; e < experts; ++e) {
      if (keys[e].worth == never.worth) continue;
      PrefetchedRecord& place = places[free + cuda::VictimRank(keys.data(), experts, e)];
      place.victim = e;
      place.slot = rows_[e].slot;
    }
    return places;
  }

  void Learn(const std::vector<int32_t>& counts) {
    if (!predicted_) return;
    predicted_ = false;
    for (int b = 0; b < kHitBins; ++b) {
      int came = 0, seen = 0;
      for (size_t e = 0; e < bins_.size(); ++e) {
        if (bins_[e] != b) continue;
        ++seen;
        came += counts[e] > 0;
      }
      if (seen == 0) continue;
      curve_[b].Add(came, seen);
      all_[b].Add(came, seen);
    }
  }

  const int slots_;
  std::vector<ServedExpert> rows_;
  std::vector<int> bins_;  // of the prediction; kHitBins: was present
  HitCounts curve_[kHitBins];
  HitCounts* const all_;  // of all layers
  std::vector<PrefetchedRecord> list_;
  bool predicted_ = false;
  int64_t tick_ = 0;
  double inserted_ = 1;
};

/// The steps of the test on the device, with `slots` blocks.
class Steps {
 public:
  Steps(const test::SyntheticSource& source, int slots, bool shy) : source_(source), shy_(shy) {
    std::vector<absl::Span<const float>> gates;
    for (int l = 0; l < shape_.layers; ++l) {
      constants_.push_back(*source_.ReadConstants(l));
      gates.push_back(constants_.back().gate);
      layers_.emplace_back(shape_.experts, slots / shape_.layers + (l < slots % shape_.layers),
                           all_);
    }
    router_ = *Router::Create(&source_.model(), gates,
                              std::vector<absl::Span<const float>>(gates.size()), pool_.get());
    context_.model = &source_.model();
    context_.phase = Phase::kDecode;
  }

  template <typename Rows>
  Counts Run() {
    std::mt19937 rng(3);
    for (const int64_t rows : {1, 3, 8}) {
      Rows next(shape_.hidden, 5 + static_cast<uint64_t>(rows));
      for (int s = 0; s < 40; ++s) Step(LayersOf(shape_, rows, &next, &rng), rows);
    }
    return sums_;
  }

 private:
  void Step(const std::vector<float>& x, int64_t rows) {
    ++context_.step;
    for (int l = 0; l < shape_.layers; ++l) {
      context_.layer = l;
      REQUIRE_OK(router_->Route(l, x.data() + l * rows * shape_.hidden, rows, &routing_));
      strategy_.prefetch->Observe(LayerEvent::Routed(context_, routing_.view()));
      if (l + 1 < shape_.layers) Predict(l + 1, static_cast<int>(rows));
      layers_[l].Call(routing_.counts, &sums_);
    }
  }

  void Predict(int layer, int tokens) {
    PrefetchSnapshot snapshot;
    snapshot.context = context_;
    snapshot.target_layer = layer;
    snapshot.routing = routing_.view();
    std::vector<float> scores(shape_.experts, 0);
    for (const PrefetchCandidate& c : strategy_.prefetch->Rank(snapshot)) {
      scores[c.key.expert] = c.score;
    }
    const auto active = std::count_if(routing_.counts.begin(), routing_.counts.end(),
                                      [](int32_t count) { return count > 0; });
    layers_[layer].Predict(scores, static_cast<int>(active), tokens, shy_);
  }

  const test::SyntheticSource& source_;
  const bool shy_;
  const test::SyntheticShape shape_ = test::WideShape();
  const std::unique_ptr<ThreadPool> pool_ = *CreateThreadPool({});
  std::vector<LayerConstants> constants_;
  std::unique_ptr<Router> router_;
  Strategy strategy_ = *BuildActivationPath(  // scores of all
      {.params = *StrategyParams::Parse("activation-path", "width=1000", {"width"})});
  HitCounts all_[kHitBins];
  std::vector<Layer> layers_;
  PolicyContext context_;
  RoutingResult routing_;
  Counts sums_;
};

// Blocks of budgets of 10, 25 and 50 %.
constexpr int kBlocks[] = {25, 64, 128};

TEST_CASE("paths that recur are prefetched at any budget, and most of it is used") {
  const test::SyntheticSource source(test::WideShape());
  for (const int blocks : kBlocks) {
    INFO(blocks << " blocks");
    const Counts counts = Steps(source, blocks, true).Run<test::RecurringRows>();
    CHECK(counts.used > 100);
    CHECK(counts.wasted < counts.used / 4);
  }
}

TEST_CASE("paths that never come again bring hardly anything, since it would cost loads") {
  const test::SyntheticSource source(test::WideShape());
  for (const int blocks : kBlocks) {
    INFO(blocks << " blocks");
    const Counts counts = Steps(source, blocks, true).Run<test::HiddenProcess>();
    const Counts eager = Steps(source, blocks, false).Run<test::HiddenProcess>();
    CHECK(counts.used + counts.wasted < counts.loads / 100);
    CHECK(eager.used + eager.wasted > 10 * (counts.used + counts.wasted));
    CHECK(eager.loads > counts.loads);
  }
}

}  // namespace
}  // namespace moert
