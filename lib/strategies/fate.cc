// fate: the next layer's gate decides what to prefetch, and the expert that the next calls will
// want least is evicted, whatever its layer. Or, as in the paper, ARC keeps experts that are
// requested again, and shallow layers, which the gate predicts worst, get their slots first (Fate
// Sec. 4). With one scheme it is exact. With `low` it is not: transfers then choose the number of
// bits (HybridBitsOptions). With cpu=1 a CPU computes some misses, and it is faithful.
#include "base/errors.h"

#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "prefetch/next_layer_gate.h"
#include "prefetch/prefetch_rule.h"
#include "store/residency/cache_policy.h"
#include "store/residency/capacity.h"
#include "strategies/arc.h"
#include "strategies/builtin.h"

namespace moert {
namespace {

class HybridBits final : public PrecisionPolicy {
 public:
  explicit HybridBits(const HybridBitsOptions& options) : options_(options) {}

  int TransferVersion(const TransferSnapshot& snapshot) override {
    constexpr int kHigh = 0, kLow = 1;
    if (snapshot.resident >= 0) {
      const bool upgrade = options_.upgrade && snapshot.context.phase == Phase::kDecode;
      return upgrade ? kHigh : snapshot.resident;
    }
    if (snapshot.context.phase == Phase::kDecode) {
      return options_.miss_low && !snapshot.prefetch ? kLow : kHigh;
    }
    return AmongLeastPopular(snapshot.layer_counts, snapshot.key.expert, options_.rho) ? kLow
                                                                                       : kHigh;
  }

 private:
  const HybridBitsOptions options_;
};

}  // namespace

bool AmongLeastPopular(absl::Span<const int32_t> counts, int expert, double rho) {
  int64_t all = 0;
  int64_t up_to = 0;  // sum over the expert and less popular ones
  for (int e = 0; e < static_cast<int>(counts.size()); ++e) {
    all += counts[e];
    const bool less = counts[e] < counts[expert] || (counts[e] == counts[expert] && e >= expert);
    if (less) up_to += counts[e];
  }
  return all > 0 && static_cast<double>(up_to) <= rho * static_cast<double>(all);
}

std::unique_ptr<PrecisionPolicy> MakeHybridBits(const HybridBitsOptions& options) {
  return std::make_unique<HybridBits>(options);
}

namespace {

absl::Status AddHybridBits(const StrategyParams& params, Strategy* strategy) {
  if (!params.Has("low")) {
    for (const char* key : {"rho", "miss_bits", "low_hits"}) {
      if (params.Has(key)) {
        return InvalidArgument("strategy fate: {} needs a second scheme, low=NAME", key);
      }
    }
    return absl::OkStatus();
  }
  const std::string high = params.Text("scheme", "w4a16_g128");
  const std::string low = params.Text("low", "");
  if (high == low) return InvalidArgument("strategy fate: scheme and low are both {}", high);
  HybridBitsOptions options;
  MOERT_ASSIGN_OR_RETURN(options.rho, params.Number("rho", options.rho, 0, 1));
  MOERT_ASSIGN_OR_RETURN(const int miss, params.OneOf("miss_bits", 0, {"high", "low"}));
  MOERT_ASSIGN_OR_RETURN(const int hits, params.OneOf("low_hits", 0, {"upgrade", "keep"}));
  options.miss_low = miss == 1;
  options.upgrade = hits == 0;
  strategy->versions = {high, low};
  strategy->precision = MakeHybridBits(options);
  return absl::OkStatus();
}

int64_t BoundaryOf(const RoutingStatistics& calibration) {
  std::vector<double> accuracy;
  for (const RoutingStatistics::Layer& layer : calibration.layers) {
    accuracy.push_back(layer.cross_layer_accuracy);
  }
  return ShallowBoundary(accuracy);
}

absl::StatusOr<CapacityRule> DealtCapacity(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  MOERT_ASSIGN_OR_RETURN(const int64_t transient, params.Integer("transient", -1, 0, 1 << 20));
  CapacityRule rule{.kind = CapacityRuleKind::kMeasured, .transient = static_cast<int>(transient)};
  if (!params.Has("shallow") && context.calibration == nullptr) return rule;
  // A number in the spec takes precedence over the calibration.
  MOERT_ASSIGN_OR_RETURN(int64_t shallow, params.Integer("shallow", -1, 0, 1 << 20));
  if (shallow < 0) shallow = BoundaryOf(*context.calibration);
  rule.kind = CapacityRuleKind::kShallowFirst;
  rule.shallow = static_cast<int>(shallow);
  return rule;
}

}  // namespace

absl::StatusOr<Strategy> BuildAuto(const StrategyContext& context) {
  MOERT_RETURN_IF_ERROR(context.params.Number("loss", 0, 0, 1).status());
  StrategyContext fate;
  fate.accepted = context.accepted;
  const std::string scheme = context.params.Text("scheme", "");
  const std::string keys = scheme.empty() ? "" : "scheme=" + scheme;
  MOERT_ASSIGN_OR_RETURN(fate.params, StrategyParams::Parse("fate", keys, {"scheme"}));
  return BuildFate(fate);
}

absl::StatusOr<Strategy> BuildFate(const StrategyContext& context) {
  const StrategyParams& params = context.params;
  Strategy strategy;
  if (params.Has("scheme")) strategy.versions = {params.Text("scheme", "")};

  MOERT_RETURN_IF_ERROR(AddHybridBits(params, &strategy));
  NextLayerGateOptions gate;
  MOERT_ASSIGN_OR_RETURN(gate.percentile, params.Number("percentile", 75, 0, 99.999));
  MOERT_ASSIGN_OR_RETURN(const int64_t top, params.Integer("top", 0, 1, 1 << 20));
  gate.top = static_cast<int>(top);
  MOERT_ASSIGN_OR_RETURN(gate.wrap, params.Flag("wrap", false));
  MOERT_ASSIGN_OR_RETURN(const int predict, params.OneOf("predict", 0, {"forward", "gate"}));
  const bool as_in_paper = params.Has("percentile") || params.Has("top");
  strategy.prefetch =
      as_in_paper ? MakeNextLayerGate(gate)
                  : MakePrefetchPolicy({.wrap = gate.wrap, .resident_forward = predict == 0});
  MOERT_ASSIGN_OR_RETURN(strategy.prefetch_control, params.Flag("control", true));

  MOERT_ASSIGN_OR_RETURN(const int eviction, params.OneOf("eviction", 0, {"score", "arc"}));
  ResidencyRule residency{.kind = ResidencyRuleKind::kWorth};
  MOERT_ASSIGN_OR_RETURN(residency.capacity, DealtCapacity(context));
  // If the spec or the calibration deals slots to layers, the layers do not share them.
  residency.shared_slots =
      context.calibration == nullptr && !params.Has("shallow") && !params.Has("transient");
  if (eviction == 0) {
    strategy.residency = MakeCachePolicy(residency);
  } else {
    strategy.residency = MakeArc(residency.capacity);
  }
  MOERT_ASSIGN_OR_RETURN(strategy.placement, BuildSharing(context));
  return strategy;
}

}  // namespace moert
