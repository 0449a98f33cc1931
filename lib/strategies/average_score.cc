// average-score(n): the expert with the lowest average router score over the last n iterations
// leaves (importance paper Sec. 5.3). All experts' scores count, chosen or not: one that nearly
// made it is likely to be used next, or to serve as a substitute. Experts the current layer still
// needs are pinned and never candidates, which is the paper's shield.
#include <algorithm>
#include <vector>

#include "strategies/builtin.h"

namespace moert {
namespace {

class AverageScore final : public ResidencyPolicy {
 public:
  AverageScore(int window, double entry_margin) : window_(window), entry_margin_(entry_margin) {}

  void Observe(const LayerEvent& event) override {
    if (event.kind != LayerEvent::Kind::kRouted) return;
    const PolicyContext& context = event.context;
    const RoutingView& routing = event.routing;
    if (layers_.empty()) layers_.resize(context.model->layers.size());
    const int experts = context.model->layers[context.layer].num_experts;
    History& history = layers_[context.layer];
    if (history.sums.empty()) {
      history.rows.assign(static_cast<size_t>(window_) * experts, 0);
      history.sums.assign(experts, 0);
    }
    // One iteration is one layer call, whatever its tokens: the mean over them.
    float* row = &history.rows[static_cast<size_t>(history.next) * experts];
    history.next = (history.next + 1) % window_;
    for (int e = 0; e < experts; ++e) {
      const float mean = MeanScore(routing, experts, e);
      const float score = mean == mean ? mean : 0;  // NaN would never leave the sum
      history.sums[e] += static_cast<double>(score) - static_cast<double>(row[e]);
      row[e] = score;
    }
  }

  int Victim(const VictimSnapshot& snapshot) override {
    int victim = -1;
    for (int i = 0; i < static_cast<int>(snapshot.candidates.size()); ++i) {
      const VictimCandidate& c = snapshot.candidates[i];
      // One prediction does not push out another for the same layer before that had its chance.
      if (snapshot.for_prefetch && c.unused_prefetch && c.key.layer == snapshot.incoming.layer) {
        continue;
      }
      if (victim < 0 || Before(c, snapshot.candidates[victim])) victim = i;
    }
    // Where nobody waits for the newcomer it has to be worth more than whom it replaces; clearly
    // more where a CPU spares its transfer, or experts of about equal worth would go round.
    constexpr double kDispensable = 0.2;
    const double margin =
        snapshot.dispensable ? std::max(entry_margin_, kDispensable) : entry_margin_;
    if (margin >= 0 && snapshot.for_prefetch && victim >= 0 &&
        Score(snapshot.incoming) <= (1 + margin) * Score(snapshot.candidates[victim].key)) {
      return -1;
    }
    return victim;
  }

 private:
  struct History {
    std::vector<float> rows;   // [n, E], a ring
    std::vector<double> sums;  // [E], over the ring
    int next = 0;
  };

  static float MeanScore(const RoutingView& routing, int experts, int e) {
    const float tokens = static_cast<float>(routing.tokens);
    // A host that routes itself may give no scores: then use is all there is to go by.
    if (routing.scores.empty()) return static_cast<float>(routing.counts[e]) / tokens;
    float sum = 0;
    for (int64_t t = 0; t < routing.tokens; ++t) sum += routing.scores[t * experts + e];
    return sum / tokens;
  }

  double Score(ExpertKey key) const {
    if (layers_.empty() || layers_[key.layer].sums.empty()) return 0;
    return layers_[key.layer].sums[key.expert];
  }

  bool Before(const VictimCandidate& a, const VictimCandidate& b) const {
    const double score_a = Score(a.key), score_b = Score(b.key);
    if (score_a != score_b) return score_a < score_b;
    return std::max(a.last_used, a.inserted) < std::max(b.last_used, b.inserted);
  }

  const int window_;
  const double entry_margin_;  // negative: everybody may enter
  std::vector<History> layers_;
};

}  // namespace

std::unique_ptr<ResidencyPolicy> MakeAverageScore(int window, double entry_margin) {
  return std::make_unique<AverageScore>(window, entry_margin);
}

}  // namespace moert
