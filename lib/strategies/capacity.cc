#include "strategies/capacity.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace moert {
namespace {

int64_t TotalExperts(const MoeModelSpec& model) {
  int64_t experts = 0;
  for (const MoeLayerSpec& layer : model.layers) experts += layer.num_experts;
  return experts;
}

int LargestTopK(const MoeModelSpec& model) {
  int k = 0;
  for (const MoeLayerSpec& layer : model.layers) k = std::max(k, layer.routing.top_k);
  return k;
}

/// A model that fits needs no transient slots, and no more than what does not fit is ever in them.
int64_t LimitTransient(int64_t wanted, const CapacitySnapshot& snapshot) {
  const int64_t missing = TotalExperts(*snapshot.model) - snapshot.slots;
  return std::max<int64_t>(0, std::min({wanted, snapshot.slots, missing}));
}

class ShallowFirstRule final : public CapacityRule {
 public:
  explicit ShallowFirstRule(const ShallowFirstOptions& options) : options_(options) {}
  std::vector<int> Capacity(const CapacitySnapshot& snapshot) override {
    return ShallowFirst(options_, snapshot);
  }

 private:
  const ShallowFirstOptions options_;
};

class MeasuredCapacity final : public CapacityRule {
 public:
  explicit MeasuredCapacity(int transient) : transient_(transient) {}

  void OnRouting(const PolicyContext& context, const RoutingView& routing) override {
    // Prefill touches nearly everything, whatever the capacities.
    if (context.phase != Phase::kDecode || curves_.empty()) return;
    curves_[context.layer].Observe(routing.counts, outlook_[context.layer]);
  }

  bool WantsCapacity(const PolicyContext& context) override {
    if (context.phase != Phase::kDecode || curves_.empty()) return false;
    return curves_.back().calls() >= next_;
  }

  std::vector<int> Capacity(const CapacitySnapshot& snapshot) override {
    const MoeModelSpec& model = *snapshot.model;
    const size_t layers = model.layers.size();
    if (curves_.empty()) {
      for (const MoeLayerSpec& layer : model.layers) curves_.emplace_back(layer.num_experts);
    }
    outlook_.assign(snapshot.prefetch.begin(), snapshot.prefetch.end());
    outlook_.resize(layers);
    const bool resized = snapshot.slots != slots_;
    slots_ = snapshot.slots;
    constexpr int64_t kFirst = 32, kLongest = 256;
    if (curves_.back().calls() < kFirst) {
      next_ = kFirst;
      return capacity_ = Unmeasured(snapshot);
    }
    next_ = curves_.back().calls() + std::min(curves_.back().calls(), kLongest);

    std::vector<std::vector<double>> curves;
    for (const MissCurve& curve : curves_) curves.push_back(curve.exposed());
    std::vector<int> dealt = DealByCurves(curves, slots_ - Transient(snapshot, 0));
    const int least = *std::min_element(dealt.begin(), dealt.end());
    dealt = DealByCurves(curves, slots_ - Transient(snapshot, LargestTopK(model) - least));
    // Poor layers cost transient slots. Where few slots are to be dealt that can be more than the
    // curves gain, which are of the past besides, and after few calls mostly chance.
    const double clear = 0.03 + 0.5 / std::sqrt(static_cast<double>(curves_.back().calls()));
    std::vector<int> even = UniformCapacity(model, slots_ - Transient(snapshot, 0));
    if ((1 - clear) * Exposed(curves, even) <= Exposed(curves, dealt)) dealt = std::move(even);
    // A change costs loads: it must be worth it, or leave the transient slots that are needed now.
    constexpr double kWorthIt = 0.02;
    const bool transient_fits = Sum(capacity_) <= Sum(dealt);
    if (!resized && transient_fits &&
        Exposed(curves, dealt) > (1 - kWorthIt) * Exposed(curves, capacity_)) {
      return capacity_;
    }
    return capacity_ = std::move(dealt);
  }

 private:
  static double Exposed(const std::vector<std::vector<double>>& curves,
                        const std::vector<int>& capacity) {
    double sum = 0;
    for (size_t l = 0; l < curves.size(); ++l) sum += curves[l][capacity[l]];
    return sum;
  }

  static int64_t Sum(const std::vector<int>& capacity) {
    return std::accumulate(capacity.begin(), capacity.end(), int64_t{0});
  }

  double LargestWindow() const {
    double transfers = 0;
    for (const PrefetchOutlook& outlook : outlook_) {
      transfers = std::max(transfers, std::floor(outlook.transfers));
    }
    return transfers;
  }

  /// `lack`: slots that the poorest layer lacks for one token.
  int64_t Transient(const CapacitySnapshot& snapshot, int lack) const {
    if (transient_ >= 0) return LimitTransient(transient_, snapshot);
    const double window = std::min<double>(LargestWindow(), 2 * LargestTopK(*snapshot.model));
    const int64_t wanted = static_cast<int64_t>(window) + std::max(0, lack);
    return LimitTransient(std::min(wanted, snapshot.slots / 2), snapshot);
  }

  std::vector<int> Unmeasured(const CapacitySnapshot& snapshot) const {
    ShallowFirstOptions options;
    options.transient = transient_;
    if (LargestWindow() < LargestTopK(*snapshot.model)) {
      options.boundary = 0;
      if (transient_ < 0) options.transient = static_cast<int>(Transient(snapshot, 0));
    }
    return ShallowFirst(options, snapshot);
  }

  const int transient_;
  std::vector<MissCurve> curves_;
  std::vector<PrefetchOutlook> outlook_;
  std::vector<int> capacity_;
  int64_t slots_ = -1;
  int64_t next_ = 0;  // calls of a layer at which to deal again
};

}  // namespace

std::vector<int> ShallowFirst(const ShallowFirstOptions& options,
                              const CapacitySnapshot& snapshot) {
  const MoeModelSpec& model = *snapshot.model;
  const int layers = model.num_layers();
  const int boundary =
      std::min(layers, options.boundary >= 0 ? options.boundary : std::max(1, (layers + 3) / 6));
  const int64_t wanted =
      options.transient >= 0
          ? options.transient
          : std::min<int64_t>(2 * LargestTopK(model), std::max<int64_t>(1, snapshot.slots / 4));
  int64_t left = snapshot.slots - LimitTransient(wanted, snapshot);
  std::vector<int> capacity;
  for (int l = 0; l < boundary; ++l) {
    capacity.push_back(static_cast<int>(std::min<int64_t>(left, model.layers[l].num_experts)));
    left -= capacity.back();
  }
  MoeModelSpec deep;
  deep.layers.assign(model.layers.begin() + boundary, model.layers.end());
  const std::vector<int> even = UniformCapacity(deep, left);
  capacity.insert(capacity.end(), even.begin(), even.end());
  return capacity;
}

int ShallowBoundary(absl::Span<const double> accuracy) {
  constexpr double kWorse = 0.03;  // of 1: three lookups in a hundred
  if (accuracy.size() < 2) return 1;
  std::vector<double> predicted(accuracy.begin() + 1, accuracy.end());
  const auto middle = predicted.begin() + static_cast<std::ptrdiff_t>(predicted.size() / 2);
  std::nth_element(predicted.begin(), middle, predicted.end());
  int boundary = 1;
  while (boundary < static_cast<int>(accuracy.size()) && accuracy[boundary] < *middle - kWorse) {
    ++boundary;
  }
  return boundary;
}

MissCurve::MissCurve(int experts) : recency_(experts), exposed_(experts + 1, 0) {
  for (int e = 0; e < experts; ++e) recency_[e] = e;
}

void MissCurve::Observe(absl::Span<const int32_t> counts, const PrefetchOutlook& outlook) {
  constexpr int64_t kMemory = 1024;  // calls
  const double weight = 1.0 / static_cast<double>(std::min(++calls_, kMemory));
  // Misses with c slots: requests whose stack distance is c or more. Walked from the far end.
  const int experts = static_cast<int>(recency_.size());
  int misses = 0;
  for (int c = experts; c >= 0; --c) {
    if (c < experts) misses += counts[recency_[c]] > 0;
    const double hidden = std::min(outlook.recall * misses, std::floor(outlook.transfers));
    exposed_[c] += weight * (misses - hidden - exposed_[c]);
  }
  requested_.clear();
  beyond_.clear();
  for (const int32_t e : recency_) (counts[e] > 0 ? requested_ : beyond_).push_back(e);
  std::stable_sort(requested_.begin(), requested_.end(),
                   [&](int32_t a, int32_t b) { return counts[a] > counts[b]; });
  std::copy(requested_.begin(), requested_.end(), recency_.begin());
  std::copy(beyond_.begin(), beyond_.end(), recency_.begin() + requested_.size());
}

std::vector<int> DealByCurves(const std::vector<std::vector<double>>& curves, int64_t slots) {
  struct Segment {
    double gain;  // a slot
    int layer;
    int begin;
    int slots;
  };
  std::vector<Segment> segments;
  for (int l = 0; l < static_cast<int>(curves.size()); ++l) {
    const std::vector<double>& curve = curves[l];
    std::vector<int> hull = {0};
    const auto slope = [&](int a, int b) { return (curve[a] - curve[b]) / (b - a); };
    for (int c = 1; c < static_cast<int>(curve.size()); ++c) {
      while (hull.size() > 1 &&
             slope(hull[hull.size() - 2], hull.back()) <= slope(hull.back(), c)) {
        hull.pop_back();
      }
      hull.push_back(c);
    }
    for (size_t i = 1; i < hull.size(); ++i) {
      segments.push_back({slope(hull[i - 1], hull[i]), l, hull[i - 1], hull[i] - hull[i - 1]});
    }
  }
  // Stable: of equal gains the shallower layer, and a layer's segments in order.
  std::stable_sort(segments.begin(), segments.end(),
                   [](const Segment& a, const Segment& b) { return a.gain > b.gain; });
  std::vector<int> capacity(curves.size(), 0);
  for (const Segment& segment : segments) {
    const int taken = static_cast<int>(std::min<int64_t>(slots, segment.slots));
    capacity[segment.layer] += taken;
    slots -= taken;
  }
  return capacity;
}

std::unique_ptr<CapacityRule> MakeShallowFirst(const ShallowFirstOptions& options) {
  return std::make_unique<ShallowFirstRule>(options);
}

std::unique_ptr<CapacityRule> MakeMeasuredCapacity(int transient) {
  return std::make_unique<MeasuredCapacity>(transient);
}

}  // namespace moert
