
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include "base/checked_math.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/status_macros.h"
#include "moert/offline/allocate.h"
#include "offline/allocate/product.h"

namespace moert {
namespace {

constexpr int kGate = 1, kUp = 2, kDown = 4;

// Blocks that share one scheme.
struct Item {
  int layer = 0;
  int first_expert = 0, last_expert = 0;  // inclusive
  int blocks = 0;                         // of kGate, kUp, kDown
};

int64_t WeightsOf(const MoeLayerSpec& layer) {
  return int64_t{3} * layer.hidden * layer.intermediate * layer.num_experts;
}

/// Rounded down and clamped to the type's range.
int64_t WholeBytes(double bytes) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  if (!(bytes > 0)) return 0;
  return bytes < static_cast<double>(kMost) ? static_cast<int64_t>(bytes) : kMost;
}

// Normally distributed numbers. The engines of <random> are the same everywhere, its distributions
// are not.
class Normal {
 public:
  explicit Normal(uint64_t seed) : engine_(seed) {}
  double operator()() {
    constexpr double kTwoPi = 6.283185307179586;
    const double radius = std::sqrt(-2 * std::log(Uniform()));  // drawn first, by every compiler
    return radius * std::cos(kTwoPi * Uniform());
  }

 private:
  double Uniform() { return (static_cast<double>(engine_() >> 11) + 0.5) * 0x1p-53; }
  std::mt19937_64 engine_;
};

class Allocator {
 public:
  Allocator(const Calibration& calibration, const AllocationOptions& options)
      : c_(calibration), o_(options), measure_(MeasureFor(calibration, options.measure)) {
    power_ = o_.power != 0 ? o_.power : measure_ == LossMeasure::kEndToEnd ? 2 : 1;
  }

  absl::Status Prepare() {
    if (!(o_.r >= 0 && o_.r <= 1)) return absl::InvalidArgumentError("r must be within 0 and 1");
    if (!(power_ > 0 && power_ <= 8)) {
      return absl::InvalidArgumentError("power must be within 0 and 8");
    }
    if (measure_ == LossMeasure::kEndToEnd && c_.probe_tokens == 0) {
      return absl::FailedPreconditionError(
          "the calibration has no end-to-end loss: it was made with --probe-tokens 0");
    }
    std::vector<Scheme> wanted = o_.schemes.empty() ? c_.schemes : o_.schemes;
    std::string known;
    for (const Scheme& s : c_.schemes) known += (known.empty() ? "" : ", ") + s.Name();
    for (const Scheme& s : wanted) {
      const auto at = std::find(c_.schemes.begin(), c_.schemes.end(), s);
      if (at == c_.schemes.end()) {
        return InvalidArgument("{} was not calibrated, only {}", s.Name(), known);
      }
      candidates_.push_back(static_cast<size_t>(at - c_.schemes.begin()));
    }
    for (const MoeLayerSpec& layer : c_.model.layers) {
      std::vector<std::vector<int64_t>> sizes(kLinearBlocks);
      for (const Scheme& s : c_.schemes) {
        MOERT_ASSIGN_OR_RETURN(const RecordLayout layout,
                               ExpertRecordLayout(layer, ExpertFormat::Uniform(s)));
        const MatrixLayout* const blocks[] = {&layout.gate, &layout.up, &layout.down};
        for (size_t b = 0; b < kLinearBlocks; ++b) {
          sizes[b].push_back(
              CheckedRoundUp<int64_t>(blocks[b]->weight_bytes, kSectionAlignment).value_or(0) +
              CheckedRoundUp<int64_t>(blocks[b]->scale_bytes, kSectionAlignment).value_or(0));
        }
      }
      sizes_.push_back(std::move(sizes));
    }
    return absl::OkStatus();
  }

  // The items of layers [first, last).
  std::vector<Item> Items(int first, int last) const {
    std::vector<Item> items;
    for (int l = first; l < last; ++l) {
      const int experts = c_.model.layers[l].num_experts;
      if (o_.granularity == Granularity::kLayer) {
        items.push_back({l, 0, experts - 1, kGate | kUp | kDown});
        continue;
      }
      for (int e = 0; e < experts; ++e) {
        if (o_.granularity == Granularity::kExpert) {
          items.push_back({l, e, e, kGate | kUp | kDown});
          continue;
        }
        if (o_.untied) {
          items.push_back({l, e, e, kGate});
          items.push_back({l, e, e, kUp});
        } else {
          items.push_back({l, e, e, kGate | kUp});
        }
        items.push_back({l, e, e, kDown});
      }
    }
    return items;
  }

  absl::StatusOr<ProductProblem::Option> OptionOf(const Item& item, size_t scheme) const {
    ProductProblem::Option option;
    const auto l = static_cast<size_t>(item.layer);
    const LayerCalibration& layer = c_.layers[l];
    for (int e = item.first_expert; e <= item.last_expert; ++e) {
      const double tokens = static_cast<double>(o_.batch) *
                            static_cast<double>(layer.selections[e]) /
                            static_cast<double>(c_.tokens);
      for (int b = 0; b < kLinearBlocks; ++b) {
        if (!(item.blocks & (1 << b))) continue;
        const int64_t bytes = sizes_[l][b][scheme];
        option.bytes += bytes;
        option.loss +=
            std::pow(Unit(layer, b) * layer.Delta(e, b, scheme, c_.schemes.size()), power_);
        const auto seconds = o_.costs.Seconds(c_.schemes[scheme], bytes, tokens);
        if (seconds.ok()) {
          option.time += *seconds;
        } else if (o_.r < 1) {
          return seconds.status();
        }
      }
    }
    return option;
  }

  // The factor of a Delta in the chosen measure.
  double Unit(const LayerCalibration& layer, int block) const {
    if (measure_ == LossMeasure::kDelta) return 1;
    if (measure_ == LossMeasure::kRelative) {
      return layer.output_norm > 0 ? 1 / layer.output_norm : 1;
    }
    return std::sqrt(layer.loss_per_square[block == kLinearBlocks - 1 ? 1 : 0]);
  }

  // Replaces losses by random ones: an error is half as large with every further bit, and its
  // weight depends on the layer and the kind of block more than on the expert, so that plans differ
  // by more than averages out by chance.
  void Randomize(const std::vector<Item>& items, Normal* normal, ProductProblem* problem) const {
    double kind_worth[8] = {};
    for (size_t i = 0; i < items.size(); ++i) {
      if (i == 0 || items[i].layer != items[i - 1].layer) {
        for (double& worth : kind_worth) worth = 2 * (*normal)();
      }
      const double worth = std::exp(kind_worth[items[i].blocks] + (*normal)());
      for (size_t k = 0; k < candidates_.size(); ++k) {
        auto& option = problem->items[i][k];
        const double bits = 8 * static_cast<double>(option.bytes) / WeightsOfItem(items[i]);
        option.loss = worth * WeightsOfItem(items[i]) * std::exp2(-2 * bits);
      }
    }
  }
  double WeightsOfItem(const Item& item) const {
    const MoeLayerSpec& layer = c_.model.layers[item.layer];
    const int matrices = __builtin_popcount(static_cast<unsigned>(item.blocks)) *
                         (item.last_expert - item.first_expert + 1);
    return static_cast<double>(layer.hidden * layer.intermediate * matrices);
  }

  absl::Status Solve(int first, int last, int64_t capacity, Normal* normal, Allocation* total) {
    const std::vector<Item> items = Items(first, last);
    ProductProblem problem;
    problem.capacity = capacity;
    problem.r = o_.r;
    for (const Item& item : items) {
      auto& options = problem.items.emplace_back();
      for (const size_t k : candidates_) {
        MOERT_ASSIGN_OR_RETURN(const ProductProblem::Option option, OptionOf(item, k));
        options.push_back(option);
      }
    }
    if (normal != nullptr) {
      problem.r = 1;
      Randomize(items, normal, &problem);
    }
    const ChoiceSolver solver = [this](const ChoiceProblem& p) {
      return o_.solver == AllocationSolver::kMilp ? SolveByMilp(p, o_.milp) : SolveByRelaxation(p);
    };
    MOERT_ASSIGN_OR_RETURN(const ProductSolution s, MinimizeProduct(problem, solver));
    for (size_t i = 0; i < items.size(); ++i) {
      const Scheme& scheme = c_.schemes[candidates_[s.choice[i]]];
      for (int e = items[i].first_expert; e <= items[i].last_expert; ++e) {
        ExpertFormat& format = formats_[items[i].layer][e];
        if (items[i].blocks & kGate) format.gate = scheme;
        if (items[i].blocks & kUp) format.up = scheme;
        if (items[i].blocks & kDown) format.down = scheme;
      }
    }
    total->bytes += s.bytes;
    total->loss += s.loss;
    total->seconds += s.time;
    total->gap = std::max(total->gap, s.gap);
    return absl::OkStatus();
  }

  absl::StatusOr<Allocation> Run() {
    const int layers = c_.model.num_layers();
    int64_t weights = 0;
    for (const MoeLayerSpec& layer : c_.model.layers) {
      formats_.emplace_back(static_cast<size_t>(layer.num_experts));
      weights += WeightsOf(layer);
    }
    Allocation total;
    std::optional<Normal> random;
    if (o_.random_seed) random.emplace(*o_.random_seed);
    Normal* const normal = random ? &*random : nullptr;
    if (o_.per_layer) {
      for (int l = 0; l < layers; ++l) {
        const double share =
            static_cast<double>(WeightsOf(c_.model.layers[l])) / static_cast<double>(weights);
        const int64_t capacity = WholeBytes(share * static_cast<double>(o_.capacity));
        MOERT_RETURN_IF_ERROR(Solve(l, l + 1, capacity, normal, &total));
      }
    } else {
      MOERT_RETURN_IF_ERROR(Solve(0, layers, o_.capacity, normal, &total));
    }
    total.stored_bits = 8.0 * static_cast<double>(total.bytes) / static_cast<double>(weights);
    for (const auto& row : formats_) {
      std::vector<int>& indices = total.version.assignment.emplace_back();
      for (ExpertFormat format : row) {
        format.hadamard = c_.hadamard;
        auto& all = total.version.formats;
        const auto at = std::find(all.begin(), all.end(), format);
        indices.push_back(static_cast<int>(at - all.begin()));
        if (at == all.end()) all.push_back(format);
      }
    }
    if (normal == nullptr) return total;
    Allocation predicted;  // what was minimized is no prediction
    MOERT_ASSIGN_OR_RETURN(predicted, Evaluate(total.version));
    total.loss = predicted.loss;
    total.seconds = predicted.seconds;
    total.gap = 0;
    return total;
  }

  absl::StatusOr<Allocation> Evaluate(const PackVersion& version) const {
    Allocation total;
    total.version = version;
    int64_t weights = 0;
    for (int l = 0; l < c_.model.num_layers(); ++l) {
      const MoeLayerSpec& layer = c_.model.layers[l];
      weights += WeightsOf(layer);
      for (int e = 0; e < layer.num_experts; ++e) {
        const ExpertFormat& format = version.format(l, e);
        const Scheme* const schemes[] = {&format.gate, &format.up, &format.down};
        for (int b = 0; b < kLinearBlocks; ++b) {
          const auto at = std::find(c_.schemes.begin(), c_.schemes.end(), *schemes[b]);
          if (at == c_.schemes.end()) {
            return absl::InvalidArgumentError(schemes[b]->Name() + " was not calibrated");
          }
          MOERT_ASSIGN_OR_RETURN(
              const ProductProblem::Option option,
              OptionOf({l, e, e, 1 << b}, static_cast<size_t>(at - c_.schemes.begin())));
          total.bytes += option.bytes;
          total.loss += option.loss;
          total.seconds += option.time;
        }
      }
    }
    total.stored_bits = 8.0 * static_cast<double>(total.bytes) / static_cast<double>(weights);
    return total;
  }

 private:
  const Calibration& c_;
  const AllocationOptions& o_;
  const LossMeasure measure_;
  double power_ = 1;
  std::vector<size_t> candidates_;
  std::vector<std::vector<std::vector<int64_t>>> sizes_;  // [layer][block][scheme]
  std::vector<std::vector<ExpertFormat>> formats_;
};

}  // namespace

int64_t CapacityOf(const MoeModelSpec& model, double bits) {
  double weights = 0;
  for (const MoeLayerSpec& layer : model.layers) weights += static_cast<double>(WeightsOf(layer));
  return WholeBytes(bits * weights / 8);
}

LossMeasure MeasureFor(const Calibration& calibration, LossMeasure measure) {
  if (measure != LossMeasure::kAuto) return measure;
  return calibration.probe_tokens > 0 ? LossMeasure::kEndToEnd : LossMeasure::kRelative;
}

absl::StatusOr<Allocation> Allocate(const Calibration& calibration,
                                    const AllocationOptions& options) try {
  Allocator allocator(calibration, options);
  MOERT_RETURN_IF_ERROR(allocator.Prepare());
  return allocator.Run();
} catch (...) {
  return ExceptionStatus("allocate");
}

absl::StatusOr<Allocation> Predict(const Calibration& calibration, const AllocationOptions& options,
                                   const PackVersion& version) try {
  Allocator allocator(calibration, options);
  MOERT_RETURN_IF_ERROR(allocator.Prepare());
  return allocator.Evaluate(version);
} catch (...) {
  return ExceptionStatus("allocate");
}

}  // namespace moert
