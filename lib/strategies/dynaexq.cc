// dynaexq: online precision control (DynaExq Sec. 4.2). Every expert is resident in some precision;
// per layer the n_hi hottest by an exponential mean of selections per time interval are high.
#include <algorithm>
#include <limits>
#include <numeric>
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

  absl::string_view name() const override { return "hotness"; }

  absl::StatusOr<std::vector<ExpertKey>> Initial(const MoeModelSpec& model,
                                                 absl::Span<const int32_t> capacity) override {
    return initial_.Choose(model, capacity);
  }

  PrecisionDecision Decide(const PrecisionSnapshot& snapshot) override {
    hotness_.Add(snapshot.selections);
    PrecisionDecision decision;
    std::vector<Swap> swaps;
    size_t first = 0;
    for (int l = 0; l < snapshot.context.model->num_layers(); ++l) {
      const int experts = snapshot.context.model->layers[l].num_experts;
      DecideLayer(l, hotness_.values().subspan(first, experts),
                  snapshot.high.subspan(first, experts), snapshot.high_capacity[l], &swaps);
      first += experts;
    }
    // The largest gain first, over all layers: transitions are rationed by the pipeline.
    std::stable_sort(swaps.begin(), swaps.end(),
                     [](const Swap& a, const Swap& b) { return a.gain > b.gain; });
    for (const Swap& swap : swaps) {
      if (swap.enter.expert >= 0) decision.promote.push_back(swap.enter);
      if (swap.leave.expert >= 0) decision.demote.push_back(swap.leave);
    }
    return decision;
  }

  std::vector<double> Worth(const PrecisionSnapshot& snapshot) override {
    return {hotness_.values().begin(), hotness_.values().end()};
  }

 private:
  struct Swap {
    ExpertKey enter, leave;  // expert -1: nobody
    double gain;
  };
  static constexpr double kFirst = std::numeric_limits<double>::infinity();

  void DecideLayer(int layer, absl::Span<const double> h, absl::Span<const uint8_t> high,
                   int capacity, std::vector<Swap>* swaps) const {
    const int experts = static_cast<int>(h.size());
    std::vector<int> order(experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return h[a] > h[b]; });
    std::vector<int> members;
    for (const int e : order) {
      if (high[e]) members.push_back(e);
    }
    int free = capacity - static_cast<int>(members.size());
    // A demotion that failed left one too many: the coldest go.
    for (; free < 0; ++free) {
      swaps->push_back({{layer, -1}, {layer, members.back()}, kFirst});
      members.pop_back();
    }
    for (int rank = 0; rank < experts; ++rank) {
      const int e = order[rank];
      if (high[e]) continue;
      if (h[e] <= 0) break;
      if (free > 0) {
        --free;
        swaps->push_back({{layer, e}, {layer, -1}, h[e]});
        continue;
      }
      // Rank slack: a newcomer must be well inside the target set, not at its edge.
      if (rank >= capacity - hysteresis_.slack) break;
      // The newcomer enters only if it is clearly hotter than the weakest member, and that one
      // leaves only then. What is clear depends on how much was seen: short intervals and few
      // tokens ask for more, where a share of the mean alone would follow every accident.
      if (members.empty()) break;
      const int weakest = members.back();
      const double mean = std::accumulate(h.begin(), h.end(), 0.0) / experts;
      const double ahead =
          hysteresis_.margin * mean + hysteresis_.noise * hotness_.Scatter(h[e] + h[weakest]);
      if (h[e] <= h[weakest] + ahead) break;
      members.pop_back();
      swaps->push_back({{layer, e}, {layer, weakest}, h[e] - h[weakest]});
    }
  }

  Hotness hotness_;
  const Hysteresis hysteresis_;
  const InitialHigh initial_;
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
  MOERT_ASSIGN_OR_RETURN(const double memory, params.Number("memory", 8, 1, 1e6));
  MOERT_ASSIGN_OR_RETURN(const double margin, params.Number("margin", 0.2, 0, 1e9));
  MOERT_ASSIGN_OR_RETURN(const double noise, params.Number("noise", 0.5, 0, 1e9));
  MOERT_ASSIGN_OR_RETURN(const int64_t slack, params.Integer("slack", 0, 0, 1 << 20));
  MOERT_ASSIGN_OR_RETURN(InitialHigh initial, InitialHigh::FromParams(params));
  s.precision = std::make_unique<HottestHigh>(
      Hotness(beta, memory), HottestHigh::Hysteresis{margin, noise, static_cast<int>(slack)},
      std::move(initial));
  return s;
}

}  // namespace moert
