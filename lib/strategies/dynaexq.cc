// dynaexq: online precision control (DynaExq Sec. 4.2). Every expert is resident in some precision.
// In each layer the n_hi hottest experts, by an exponential mean of selections per time interval,
// are high. With rank=loss a selection is weighted by the loss that a high expert saves,
// and the experts worth most across all layers are high.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "store/state_bytes.h"
#include "strategies/builtin.h"
#include "strategies/hotness.h"
#include "strategies/initial_high.h"
#include "strategies/routing_statistics.h"

namespace moert {

absl::StatusOr<TransitionOptions> ReadTransitions(const StrategyParams& params) {
  TransitionOptions options;
  MOERT_ASSIGN_OR_RETURN(const double interval_ms, params.Number("interval_ms", 200, 0.001, 1e7));
  options.interval_ns = static_cast<int64_t>(interval_ms * 1e6);
  MOERT_ASSIGN_OR_RETURN(options.hi_fraction, params.Number("hi_fraction", -1, 0, 1));
  MOERT_ASSIGN_OR_RETURN(const int64_t spare, params.Integer("spare", 0, 1, 1 << 20));
  options.spare = static_cast<int>(spare);
  MOERT_ASSIGN_OR_RETURN(options.max_gbps, params.Number("max_gbps", 0, 0, 1e6));
  return options;
}

absl::StatusOr<Hotness> ReadHotness(const StrategyContext& context) {
  MOERT_ASSIGN_OR_RETURN(const double beta, context.params.Number("beta", 0.85, 0, 0.999999));
  MOERT_ASSIGN_OR_RETURN(const double memory, context.params.Number("memory", 8, 1, 1e6));
  return Hotness(beta, memory, SelectionsOf(context.calibration));
}

namespace {

class HottestHigh final : public PrecisionPolicy {
 public:
  /// How far a newcomer must be ahead of the weakest member.
  struct Hysteresis {
    double margin;  // share of the mean worth of the competing experts
    double noise;   // standard deviations of the counting noise
    int slack;      // ranks inside the target set
  };

  /// `weights`: the weight of a selection of each expert, over all layers. Empty: all are 1, and
  /// each layer has its own number of high experts.
  HottestHigh(Hotness hotness, std::vector<double> weights, Hysteresis hysteresis,
              InitialHigh initial)
      : hotness_(std::move(hotness)),
        weights_(std::move(weights)),
        hysteresis_(hysteresis),
        initial_(std::move(initial)) {}

  int64_t StateBytes(const PolicyScope& scope) const override {
    // Lists of experts, and the decision.
    constexpr int64_t kExpert =
        Hotness::kBytesPerExpert + sizeof(double) +
        kGrowth * (3 * sizeof(Ranked) + 2 * sizeof(Swap) + 2 * sizeof(ExpertKey) + sizeof(double));
    return PerExpert(scope, kExpert) + initial_.bytes();
  }

  absl::StatusOr<PrecisionDecision> Decide(const PrecisionSnapshot& snapshot) override {
    if (snapshot.moment == PrecisionMoment::kOpen) return initial_.Choose(snapshot);
    if (snapshot.moment == PrecisionMoment::kShrink) {
      PrecisionDecision decision;
      for (size_t i = 0; i < hotness_.values().size(); ++i) decision.worth.push_back(Worth(i));
      return decision;
    }
    hotness_.Add(snapshot.selections);
    swaps_.clear();
    experts_.clear();
    int64_t capacity = 0;
    size_t index = 0;
    for (int l = 0; l < snapshot.context.model->num_layers(); ++l) {
      for (int e = 0; e < snapshot.context.model->layers[l].num_experts; ++e, ++index) {
        experts_.push_back({Worth(index), WeightOf(index), {l, e}, snapshot.high[index] != 0});
      }
      capacity += snapshot.high_capacity[l];
      if (!weights_.empty() && l + 1 < snapshot.context.model->num_layers()) continue;
      DecideAmong(capacity);
      experts_.clear();
      capacity = 0;
    }
    // The largest gain first, over all layers, because the pipeline limits the rate of transitions.
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
    ExpertKey enter, leave;  // expert -1: none
    double gain;
  };
  static constexpr double kFirst = std::numeric_limits<double>::infinity();
  static constexpr ExpertKey kNobody{-1, -1};

  /// Ordered by descending worth, then by ascending index.
  struct Ranked {
    double worth;
    double weight;
    ExpertKey key;
    bool high;
    bool operator<(const Ranked& other) const {
      if (worth != other.worth) return worth > other.worth;
      return key.layer != other.key.layer ? key.layer < other.key.layer
                                          : key.expert < other.key.expert;
    }
  };

  double WeightOf(size_t index) const { return weights_.empty() ? 1 : weights_[index]; }
  double Worth(size_t index) const { return WeightOf(index) * hotness_.values()[index]; }

  // Decides which of experts_ get the `capacity` places.
  void DecideAmong(int64_t capacity) {
    members_.clear();
    newcomers_.clear();
    double sum = 0, least = kFirst;
    for (const Ranked& r : experts_) {
      sum += r.worth;
      if (!r.high) continue;
      members_.push_back(r);
      least = std::min(least, r.worth);
    }
    int64_t free = capacity - std::ssize(members_);
    const double margin = hysteresis_.margin * sum / static_cast<double>(experts_.size());
    // A newcomer needs more than this threshold; usually none does.
    const double threshold = free > 0 || members_.empty() ? 0 : least + margin;
    for (const Ranked& r : experts_) {
      if (!r.high && r.worth > threshold) newcomers_.push_back(r);
    }
    if (newcomers_.empty() && free >= 0) return;
    std::sort(newcomers_.begin(), newcomers_.end());
    std::make_heap(members_.begin(), members_.end());  // the weakest in front
    const auto take_weakest = [&] {
      std::pop_heap(members_.begin(), members_.end());
      const ExpertKey key = members_.back().key;
      members_.pop_back();
      return key;
    };
    // After a failed demotion there are too many members: the coldest leave.
    for (; free < 0; ++free) swaps_.push_back({kNobody, take_weakest(), kFirst});
    for (const Ranked& newcomer : newcomers_) {
      if (free > 0) {
        --free;
        swaps_.push_back({newcomer.key, kNobody, newcomer.worth});
        continue;
      }
      // Rank slack: a newcomer must be well inside the target set, not at its edge.
      if (hysteresis_.slack > 0 && RankOf(newcomer) >= capacity - hysteresis_.slack) break;
      if (members_.empty()) break;
      const Ranked& weakest = members_.front();
      const double gain = newcomer.worth - weakest.worth;
      if (gain <= margin) break;
      // The newcomer replaces the weakest member only if it is clearly worth more. The required
      // lead depends on the number of samples: with short intervals and few tokens a share of the
      // mean alone would follow noise.
      const double scatter =
          hotness_.Scatter(newcomer.weight * newcomer.worth + weakest.weight * weakest.worth);
      if (gain <= margin + hysteresis_.noise * scatter) continue;
      swaps_.push_back({newcomer.key, take_weakest(), gain});
    }
  }

  int64_t RankOf(const Ranked& of) const {
    return std::count_if(experts_.begin(), experts_.end(),
                         [&](const Ranked& other) { return other < of; });
  }

  Hotness hotness_;
  const std::vector<double> weights_;
  const Hysteresis hysteresis_;
  const InitialHigh initial_;
  std::vector<Swap> swaps_;  // scratch, as are
  std::vector<Ranked> experts_, members_, newcomers_;
};

// The loss that a selection saves if the expert is high, for each expert.
absl::StatusOr<std::vector<double>> SavedPerSelection(const RoutingStatistics& statistics,
                                                      absl::Span<const std::string> versions) {
  MOERT_ASSIGN_OR_RETURN(const std::vector<double> lost, LossPerSelection(statistics, versions));
  std::vector<double> saved;
  for (size_t i = 0; i < lost.size(); i += 2) saved.push_back(std::max(0.0, lost[i + 1] - lost[i]));
  return saved;
}

}  // namespace

absl::StatusOr<Strategy> BuildDynaExq(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  if (params.Has("versions")) return BuildMovingPlan(context);
  Strategy s;
  s.serving = Serving::kHotSet;
  s.versions = {params.Text("hi", "bf16"), params.Text("lo", "w4a16_g128")};
  MOERT_ASSIGN_OR_RETURN(s.transitions, ReadTransitions(params));
  MOERT_ASSIGN_OR_RETURN(const double margin, params.Number("margin", 0.2, 0, 1e9));
  MOERT_ASSIGN_OR_RETURN(const double noise, params.Number("noise", 0.5, 0, 1e9));
  MOERT_ASSIGN_OR_RETURN(const int64_t slack, params.Integer("slack", 0, 0, 1 << 20));
  MOERT_ASSIGN_OR_RETURN(const int rank, params.OneOf("rank", 0, {"hotness", "loss"}));
  std::vector<double> weights;
  if (rank == 1) {
    if (context.calibration == nullptr) {
      return absl::InvalidArgumentError(
          "strategy dynaexq: rank=loss needs calibration=FILE of `moert-pack calibrate`");
    }
    MOERT_ASSIGN_OR_RETURN(weights, SavedPerSelection(*context.calibration, s.versions));
    s.transitions.shared = true;
  }
  MOERT_ASSIGN_OR_RETURN(InitialHigh initial, InitialHigh::Make(context, weights));
  MOERT_ASSIGN_OR_RETURN(Hotness hotness, ReadHotness(context));
  s.precision = std::make_unique<HottestHigh>(
      std::move(hotness), std::move(weights),
      HottestHigh::Hysteresis{margin, noise, static_cast<int>(slack)}, std::move(initial));
  return s;
}

}  // namespace moert
