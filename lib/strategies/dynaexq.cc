// dynaexq: online precision control (DynaExq Sec. 4.2). Every expert is resident in some precision;
// per layer the n_hi hottest by an exponential mean of selections per time interval are high.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "strategies/builtin.h"
#include "strategies/hotness.h"
#include "strategies/initial_high.h"

namespace moert {
namespace {

class HottestHigh final : public PrecisionPolicy {
 public:
  /// What a newcomer must be ahead of the weakest member by.
  struct Hysteresis {
    double margin;  // share of the layer's mean hotness
    double noise;   // standard deviations of chance
    int slack;      // ranks inside the target set
  };

  HottestHigh(Hotness hotness, Hysteresis hysteresis, InitialHigh initial)
      : hotness_(std::move(hotness)), hysteresis_(hysteresis), initial_(std::move(initial)) {}

  absl::StatusOr<PrecisionDecision> Decide(const PrecisionSnapshot& snapshot) override {
    if (snapshot.moment == PrecisionMoment::kOpen) return initial_.Choose(snapshot);
    if (snapshot.moment == PrecisionMoment::kShrink) {
      PrecisionDecision decision;
      decision.worth.assign(hotness_.values().begin(), hotness_.values().end());
      return decision;
    }
    hotness_.Add(snapshot.selections);
    swaps_.clear();
    size_t first = 0;
    for (int l = 0; l < snapshot.context.model->num_layers(); ++l) {
      const int experts = snapshot.context.model->layers[l].num_experts;
      DecideLayer(l, hotness_.values().subspan(first, experts),
                  snapshot.high.subspan(first, experts), snapshot.high_capacity[l]);
      first += experts;
    }
    // The largest gain first, over all layers: transitions are rationed by the pipeline.
    std::stable_sort(swaps_.begin(), swaps_.end(),
                     [](const Swap& a, const Swap& b) { return a.gain > b.gain; });
    PrecisionDecision decision;
    for (const Swap& swap : swaps_) {
      if (swap.enter.expert >= 0) decision.promote.push_back(swap.enter);
      if (swap.leave.expert >= 0) decision.demote.push_back(swap.leave);
    }
    return decision;
  }

 private:
  struct Swap {
    ExpertKey enter, leave;  // expert -1: nobody
    double gain;
  };
  static constexpr double kFirst = std::numeric_limits<double>::infinity();

  /// Hotter first, then the lower index.
  struct Ranked {
    double h;
    int expert;
    bool operator<(const Ranked& other) const {
      return h > other.h || (h == other.h && expert < other.expert);
    }
  };

  void DecideLayer(int layer, absl::Span<const double> h, absl::Span<const uint8_t> high,
                   int capacity) {
    const int experts = static_cast<int>(h.size());
    members_.clear();
    double sum = 0, least = kFirst;
    for (int e = 0; e < experts; ++e) {
      sum += h[e];
      if (!high[e]) continue;
      members_.push_back({h[e], e});
      least = std::min(least, h[e]);
    }
    int free = capacity - static_cast<int>(members_.size());
    // The newcomer enters only if it is clearly hotter than the weakest member, and that one leaves
    // only then. What is clear depends on how much was seen: short intervals and few tokens ask for
    // more, where a share of the mean alone would follow every accident.
    const auto needed = [&, margin = hysteresis_.margin * sum / experts](double h, double weakest) {
      return weakest + margin + hysteresis_.noise * hotness_.Scatter(h + weakest);
    };
    // No newcomer needs less; mostly nobody has it.
    const double threshold = free > 0 || members_.empty() ? 0 : needed(least, least);
    newcomers_.clear();
    for (int e = 0; e < experts; ++e) {
      if (!high[e] && h[e] > threshold) newcomers_.push_back({h[e], e});
    }
    if (newcomers_.empty() && free >= 0) return;
    std::sort(newcomers_.begin(), newcomers_.end());
    std::make_heap(members_.begin(), members_.end());  // the weakest in front
    const auto take_weakest = [&] {
      std::pop_heap(members_.begin(), members_.end());
      const int expert = members_.back().expert;
      members_.pop_back();
      return ExpertKey{layer, expert};
    };
    // A demotion that failed left one too many: the coldest go.
    for (; free < 0; ++free) swaps_.push_back({{layer, -1}, take_weakest(), kFirst});
    for (const Ranked& newcomer : newcomers_) {
      const ExpertKey enter{layer, newcomer.expert};
      if (free > 0) {
        --free;
        swaps_.push_back({enter, {layer, -1}, newcomer.h});
        continue;
      }
      // Rank slack: a newcomer must be well inside the target set, not at its edge.
      if (hysteresis_.slack > 0 && RankOf(newcomer, h) >= capacity - hysteresis_.slack) break;
      if (members_.empty()) break;
      const double weakest = members_.front().h;
      if (newcomer.h <= needed(newcomer.h, weakest)) break;
      swaps_.push_back({enter, take_weakest(), newcomer.h - weakest});
    }
  }

  static int RankOf(const Ranked& of, absl::Span<const double> h) {
    int rank = 0;
    for (int e = 0; e < static_cast<int>(h.size()); ++e) rank += Ranked{h[e], e} < of;
    return rank;
  }

  Hotness hotness_;
  const Hysteresis hysteresis_;
  const InitialHigh initial_;
  std::vector<Swap> swaps_;                  // scratch, as are
  std::vector<Ranked> members_, newcomers_;  // of a layer
};

}  // namespace

absl::StatusOr<Strategy> BuildDynaExq(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  Strategy s;
  s.serving = Serving::kHotSet;
  s.versions = {params.Text("hi", "bf16"), params.Text("lo", "w4a16_g128")};
  MOERT_ASSIGN_OR_RETURN(const double interval_ms, params.Number("interval_ms", 200, 0.001, 1e7));
  s.transitions.interval_ns = static_cast<int64_t>(interval_ms * 1e6);
  MOERT_ASSIGN_OR_RETURN(s.transitions.hi_fraction, params.Number("hi_fraction", -1, 0, 1));
  MOERT_ASSIGN_OR_RETURN(const int64_t spare, params.Integer("spare", 4, 1, 1 << 20));
  s.transitions.spare = static_cast<int>(spare);
  MOERT_ASSIGN_OR_RETURN(s.transitions.max_gbps, params.Number("max_gbps", 0, 0, 1e6));
  MOERT_ASSIGN_OR_RETURN(const double beta, params.Number("beta", 0.85, 0, 0.999999));
  MOERT_ASSIGN_OR_RETURN(const double memory, params.Number("memory", 8, 1, 1e6));
  MOERT_ASSIGN_OR_RETURN(const double margin, params.Number("margin", 0.2, 0, 1e9));
  MOERT_ASSIGN_OR_RETURN(const double noise, params.Number("noise", 0.5, 0, 1e9));
  MOERT_ASSIGN_OR_RETURN(const int64_t slack, params.Integer("slack", 0, 0, 1 << 20));
  MOERT_ASSIGN_OR_RETURN(InitialHigh initial, InitialHigh::Make(context));
  s.precision = std::make_unique<HottestHigh>(
      Hotness(beta, memory), HottestHigh::Hysteresis{margin, noise, static_cast<int>(slack)},
      std::move(initial));
  return s;
}

}  // namespace moert
