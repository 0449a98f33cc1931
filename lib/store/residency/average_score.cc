// average-score(n): the expert with the lowest average router score over the last n iterations
// leaves (importance paper Sec. 5.3). All experts' scores count, chosen or not: one that nearly
// made it is likely to be used next, or to serve as a substitute. Experts the current layer still
// needs are pinned and never candidates, which is the paper's shield.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "rules/expert_use.h"
#include "store/residency/cache_policy.h"
#include "store/residency/capacity.h"
#include "store/state_bytes.h"

namespace moert {
namespace {

class AverageScore final : public CachePolicy {
 public:
  AverageScore(const ResidencyRule& rule, double entry_margin)
      : rule_(rule),
        window_(rule.window),
        entry_margin_(entry_margin),
        dealer_(MakeSlotDealer(rule.capacity)) {}

  std::optional<ResidencyRule> rule() const override {
    return entry_margin_ < 0 ? std::optional(rule_) : std::nullopt;
  }

  int64_t StateBytes(const PolicyScope& scope) const override {
    return PerExpert(scope, window_ * int64_t{sizeof(float)} + int64_t{sizeof(double)});
  }

  std::vector<int> Capacity(const CapacitySnapshot& snapshot) override {
    MakeLayers(*snapshot.model);
    return dealer_->Capacity(snapshot);
  }

  void Observe(const LayerEvent& event) override {
    if (event.kind != LayerEvent::Kind::kRouted) return;
    dealer_->Observe(event);
    const PolicyContext& context = event.context;
    const RoutingView& routing = event.routing;
    MakeLayers(*context.model);
    const int experts = context.model->layers[context.layer].num_experts;
    History& history = layers_[context.layer];
    // One layer call is one iteration, with the mean over its tokens.
    float* row = &history.rows[ScoreSums::Row(history.calls++, window_) * experts];
    const float* scores = routing.scores.empty() ? nullptr : routing.scores.data();
    for (int e = 0; e < experts; ++e) {
      ScoreSums::Add(ScoreSums::Of(scores == nullptr ? nullptr : scores + e, experts,
                                   routing.tokens, routing.counts[e]),
                     &row[e], &history.sums[e]);
    }
  }

  int Victim(const VictimSnapshot& snapshot) override {
    int victim = -1;
    for (int i = 0; i < static_cast<int>(snapshot.candidates.size()); ++i) {
      const VictimCandidate& c = snapshot.candidates[i];
      // A prefetch does not evict another prefetched expert of the same layer that is still unused.
      if (snapshot.for_prefetch && c.unused_prefetch && c.key.layer == snapshot.incoming.layer) {
        continue;
      }
      if (victim < 0 || Before(c, snapshot.candidates[victim])) victim = i;
    }
    // A newcomer that no call waits for has to be worth more than its victim. If it is dispensable,
    // as a CPU would compute it, it has to be worth clearly more: otherwise experts of about equal
    // worth would keep replacing each other.
    constexpr double kDispensable = 0.2;
    const double margin =
        snapshot.dispensable ? std::max(entry_margin_, kDispensable) : entry_margin_;
    if (margin >= 0 && snapshot.for_prefetch && victim >= 0 &&
        Score(snapshot.incoming) <= (1 + margin) * Score(snapshot.candidates[victim].key)) {
      return -1;
    }
    return victim;
  }

  void LendUse(int layer, int experts, LentLayer* loan) const override {
    if (layers_.empty()) {
      loan->scores.resize(static_cast<size_t>(window_) * static_cast<size_t>(experts));
      loan->sums.resize(experts);
      return;
    }
    loan->calls = layers_[layer].calls;
    loan->scores = layers_[layer].rows;
    loan->sums = layers_[layer].sums;
  }
  void ResumeUse(int layer, const LentLayer& loan) override {
    if (layers_.empty()) return;
    History& mine = layers_[layer];
    mine.calls = loan.calls;
    mine.rows = loan.scores;
    mine.sums = loan.sums;
  }

 private:
  struct History {
    std::vector<float> rows;   // [n, E], a ring
    std::vector<double> sums;  // [E], over the ring
    int64_t calls = 0;
  };

  void MakeLayers(const MoeModelSpec& model) {
    if (!layers_.empty()) return;
    std::vector<History> layers(model.layers.size());  // all or none, if memory runs out
    for (size_t l = 0; l < layers.size(); ++l) {
      const auto experts = static_cast<size_t>(model.layers[l].num_experts);
      layers[l].rows.assign(static_cast<size_t>(window_) * experts, 0);
      layers[l].sums.assign(experts, 0);
    }
    layers_ = std::move(layers);
  }

  double Score(ExpertKey key) const {
    return layers_.empty() ? 0 : layers_[key.layer].sums[key.expert];
  }

  bool Before(const VictimCandidate& a, const VictimCandidate& b) const {
    const double score_a = Score(a.key), score_b = Score(b.key);
    if (score_a != score_b) return score_a < score_b;
    return std::max(a.last_used, a.inserted) < std::max(b.last_used, b.inserted);
  }

  const ResidencyRule rule_;
  const int window_;
  const double entry_margin_;  // negative: every expert may enter
  const std::unique_ptr<SlotDealer> dealer_;
  std::vector<History> layers_;
};

}  // namespace

std::unique_ptr<CachePolicy> MakeAverageScore(const ResidencyRule& rule, double entry_margin) {
  return std::make_unique<AverageScore>(rule, entry_margin);
}

}  // namespace moert
