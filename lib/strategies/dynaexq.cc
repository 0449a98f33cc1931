// dynaexq: online precision control (DynaExq Sec. 4.2). Every expert is resident in some precision;
// per layer the n_hi hottest by an exponential mean of selections per time interval are high.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/status_macros.h"
#include "fmt/format.h"
#include "strategies/builtin.h"

namespace moert {
namespace {

class HottestHigh final : public PrecisionPolicy {
 public:
  HottestHigh(double beta, double margin, double noise, int slack, std::vector<ExpertKey> hot)
      : beta_(beta), margin_(margin), noise_(noise), slack_(slack), hot_(std::move(hot)) {}

  absl::string_view name() const override { return "hotness"; }

  std::vector<ExpertKey> Initial(const MoeModelSpec&, absl::Span<const int32_t>) override {
    return hot_;
  }

  PrecisionDecision Decide(const PrecisionSnapshot& snapshot) override {
    hotness_.resize(snapshot.selections.size(), 0);
    for (size_t i = 0; i < hotness_.size(); ++i) {
      hotness_[i] = beta_ * hotness_[i] + (1 - beta_) * static_cast<double>(snapshot.selections[i]);
    }
    PrecisionDecision decision;
    std::vector<Swap> swaps;
    size_t first = 0;
    for (int l = 0; l < snapshot.context.model->num_layers(); ++l) {
      const int experts = snapshot.context.model->layers[l].num_experts;
      DecideLayer(l, absl::MakeConstSpan(hotness_).subspan(first, experts),
                  snapshot.high.subspan(first, experts), snapshot.high_capacity[l], &swaps);
      first += experts;
    }
    // The largest gain first, over all layers: transitions are rationed by the pipeline.
    std::stable_sort(swaps.begin(), swaps.end(),
                     [](const Swap& a, const Swap& b) { return a.gain > b.gain; });
    for (const Swap& swap : swaps) {
      decision.promote.push_back(swap.enter);
      if (swap.leave.expert >= 0) decision.demote.push_back(swap.leave);
    }
    return decision;
  }

 private:
  struct Swap {
    ExpertKey enter, leave;
    double gain;
  };

  void DecideLayer(int layer, absl::Span<const double> h, absl::Span<const uint8_t> high,
                   int capacity, std::vector<Swap>* swaps) const {
    const int experts = static_cast<int>(h.size());
    std::vector<int> order(experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return h[a] > h[b]; });
    std::vector<int> members, candidates;
    for (int rank = 0; rank < experts; ++rank) {
      const int e = order[rank];
      if (high[e]) members.push_back(e);
      // Rank slack: a newcomer must be well inside the target set, not at its edge.
      else if (rank < capacity - slack_ || static_cast<int>(members.size()) < capacity) {
        candidates.push_back(e);
      }
    }
    int free = capacity - static_cast<int>(members.size());
    for (const int e : candidates) {
      if (h[e] <= 0) break;
      if (free > 0) {
        --free;
        swaps->push_back({{layer, e}, {layer, -1}, h[e]});
        continue;
      }
      // Additive margin, in selections an interval: the newcomer enters only if it is clearly
      // hotter than the weakest member, and that one leaves only then. What is clear depends on how
      // much was seen: counts of independent selections would scatter like Poisson's, and an
      // exponential mean of them by (1 - beta) / (1 + beta) of that variance. Short intervals and
      // few tokens thus ask for more, where a share of the mean alone would follow every accident.
      if (members.empty()) break;
      const int weakest = members.back();
      const double mean = std::accumulate(h.begin(), h.end(), 0.0) / experts;
      const double scatter = std::sqrt((h[e] + h[weakest]) * (1 - beta_) / (1 + beta_));
      if (h[e] <= h[weakest] + margin_ * mean + noise_ * scatter) break;
      members.pop_back();
      swaps->push_back({{layer, e}, {layer, weakest}, h[e] - h[weakest]});
    }
  }

  const double beta_;
  const double margin_;
  const double noise_;
  const int slack_;
  const std::vector<ExpertKey> hot_;
  std::vector<double> hotness_;
};

}  // namespace

absl::StatusOr<Strategy> BuildDynaExq(const Params& params) {
  Strategy s;
  s.serving = Serving::kHotSet;
  s.exact = false;
  s.graph_safe = true;
  s.versions = {params.Text("hi", "bf16"), params.Text("lo", "w4a16_g128")};
  MOERT_ASSIGN_OR_RETURN(const double interval_ms, params.Number("interval_ms", 200, 0.001, 1e7));
  s.transitions.interval_ns = static_cast<int64_t>(interval_ms * 1e6);
  MOERT_ASSIGN_OR_RETURN(s.transitions.hi_fraction, params.Number("hi_fraction", -1, 0, 1));
  MOERT_ASSIGN_OR_RETURN(const int64_t spare, params.Integer("spare", 4, 1, 1 << 20));
  s.transitions.spare = static_cast<int>(spare);
  MOERT_ASSIGN_OR_RETURN(s.transitions.max_gbps, params.Number("max_gbps", 0, 0, 1e6));
  MOERT_ASSIGN_OR_RETURN(const double beta, params.Number("beta", 0.85, 0, 0.999999));
  MOERT_ASSIGN_OR_RETURN(const double margin, params.Number("margin", 0.2, 0, 1e9));
  MOERT_ASSIGN_OR_RETURN(const double noise, params.Number("noise", 1, 0, 1e9));
  MOERT_ASSIGN_OR_RETURN(const int64_t slack, params.Integer("slack", 0, 0, 1 << 20));
  MOERT_ASSIGN_OR_RETURN(std::vector<ExpertKey> hot, params.Experts("hot"));
  s.precision =
      std::make_unique<HottestHigh>(beta, margin, noise, static_cast<int>(slack), std::move(hot));
  return s;
}

}  // namespace moert
