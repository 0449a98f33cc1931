#include "store/residency/capacity.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "store/state_bytes.h"

namespace moert {
namespace {

int LargestTopK(const MoeModelSpec& model) {
  int k = 0;
  for (const MoeLayerSpec& layer : model.layers) k = std::max(k, layer.routing.top_k);
  return k;
}

/// Limits transient slots to the experts that do not fit: a model that fits needs none.
int64_t LimitTransient(int64_t wanted, const CapacitySnapshot& snapshot) {
  const int64_t missing = snapshot.model->total_experts() - snapshot.slots;
  return std::max<int64_t>(0, std::min({wanted, snapshot.slots, missing}));
}

class EvenDealer final : public SlotDealer {
 public:
  std::vector<int> Capacity(const CapacitySnapshot& /*snapshot*/) override { return {}; }
};

class ShallowFirstDealer final : public SlotDealer {
 public:
  explicit ShallowFirstDealer(const ShallowFirstOptions& options) : options_(options) {}
  std::vector<int> Capacity(const CapacitySnapshot& snapshot) override {
    if (snapshot.step != nullptr) return {};  // steps change nothing that the answer depends on
    return ShallowFirst(options_, snapshot);
  }

 private:
  const ShallowFirstOptions options_;
};

class MeasuredCapacity final : public SlotDealer {
 public:
  explicit MeasuredCapacity(int transient) : transient_(transient) {}

  using SlotDealer::Observe;
  void Observe(const LayerEvent& event, absl::Span<const int32_t> order) override {
    // Prefill uses nearly all experts, whatever the capacities.
    if (event.context.phase != Phase::kDecode || curves_.empty()) return;
    const int layer = event.context.layer;
    if (order.empty()) {
      curves_[layer].Observe(event.routing.counts, predicted_[layer]);
    } else {
      curves_[layer].Observe(event.routing.counts, predicted_[layer], order);
    }
  }

  int64_t StateBytes(const PolicyScope& scope) const override {
    // The curves of three parts, and the one by which slots are being dealt.
    constexpr int64_t kExpert =
        MissCurve::kBytesPerExpert + 3 * sizeof(double) + kGrowth * kDealtBytesPerExpert;
    return PerExpert(scope, kExpert) + scope.model->num_layers() * kLayerBytes;
  }

  std::vector<int> Capacity(const CapacitySnapshot& snapshot) override {
    if (snapshot.step != nullptr && !DueAt(*snapshot.step)) return {};
    const MoeModelSpec& model = *snapshot.model;
    const size_t layers = model.layers.size();
    if (curves_.empty()) {
      for (const MoeLayerSpec& layer : model.layers) curves_.emplace_back(layer.num_experts);
    }
    outlook_.assign(snapshot.prefetch.begin(), snapshot.prefetch.end());
    outlook_.resize(layers);
    const bool prefetching = std::any_of(outlook_.begin(), outlook_.end(), Hides);
    if (prefetching || predicted_.empty()) predicted_ = outlook_;
    const bool same = snapshot.slots == slots_ && prefetching == prefetching_;
    slots_ = snapshot.slots;
    prefetching_ = prefetching;
    constexpr int64_t kLongest = 256;
    const int64_t calls = curves_.back().calls();
    if (calls < kFirst) {
      next_ = kFirst;
      return capacity_ = Unmeasured(snapshot);
    }
    if (same && calls < next_) return capacity_;
    next_ = calls + std::min(calls, kLongest);

    const Curves curves = CurvesOf(MissCurve::kAll);
    std::vector<int> dealt = DealByCurves(curves, slots_ - Transient(snapshot, 0));
    const int least = *std::min_element(dealt.begin(), dealt.end());
    const int64_t slots = slots_ - Transient(snapshot, LargestTopK(model) - least);
    dealt = DealByCurves(curves, slots);
    std::vector<int> even = UniformCapacity(model, slots_ - Transient(snapshot, 0));
    if (!ClearlyBetter(slots, even)) dealt = std::move(even);
    // A change costs loads: it must save enough misses, or provide the transient slots needed now.
    constexpr double kWorthIt = 0.02;
    const bool transient_fits = Sum(capacity_) <= Sum(dealt);
    if (same && transient_fits &&
        Exposed(curves, dealt) > (1 - kWorthIt) * Exposed(curves, capacity_)) {
      return capacity_;
    }
    return capacity_ = std::move(dealt);
  }

 private:
  using Curves = std::vector<std::vector<double>>;     // [L][E + 1]
  static constexpr int64_t kDealtBytesPerExpert = 32;  // a segment and a corner of the hull
  // Bytes of the lists of layers, and of the extra element of each curve.
  static constexpr int64_t kLayerBytes = 1024;
  static constexpr int64_t kFirst = 2 * MissCurve::kBlock;  // calls before curves say anything

  bool DueAt(const PolicyContext& step) const {
    // Prefetch may have stopped or begun since: a look every few steps sees it.
    constexpr int64_t kLook = 16;
    if (step.phase != Phase::kDecode || curves_.empty()) return false;
    const int64_t calls = curves_.back().calls();
    return calls >= next_ || (calls >= kFirst && calls % kLook == 0);
  }

  static bool Predicted(const PrefetchOutlook& outlook) { return outlook.recall > 0; }
  static bool Hides(const PrefetchOutlook& outlook) {
    return Predicted(outlook) && outlook.transfers >= 1;
  }

  Curves CurvesOf(MissCurve::Part part) const {
    Curves curves;
    for (const MissCurve& curve : curves_) curves.push_back(curve.Misses(part, prefetching_));
    return curves;
  }

  /// Whether slots dealt by curves have fewer misses than `even` ones. Judged by the same curves
  /// they always do, so each half of the calls deals and the other half judges. Layers with few
  /// slots also cost transient slots. The number of misses bounds the influence of chance.
  bool ClearlyBetter(int64_t slots, const std::vector<int>& even) const {
    const Curves one = CurvesOf(MissCurve::kOneHalf), other = CurvesOf(MissCurve::kOtherHalf);
    const double dealt =
        Exposed(one, DealByCurves(other, slots)) + Exposed(other, DealByCurves(one, slots));
    const double misses = Exposed(one, even) + Exposed(other, even);
    const double counted = misses / 2 * static_cast<double>(curves_.back().calls());
    return dealt < misses * (1 - 0.03 - 1 / std::sqrt(std::max(1.0, counted)));
  }

  static double Exposed(const Curves& curves, const std::vector<int>& capacity) {
    double sum = 0;
    for (size_t l = 0; l < curves.size(); ++l) sum += curves[l][capacity[l]];
    return sum;
  }

  static int64_t Sum(const std::vector<int>& capacity) {
    return std::accumulate(capacity.begin(), capacity.end(), int64_t{0});
  }

  /// Transfers that the window of the median layer holds, among layers that are predicted at all.
  double Window() const {
    std::vector<double> transfers;
    for (const PrefetchOutlook& outlook : outlook_) {
      if (Predicted(outlook)) transfers.push_back(outlook.transfers);
    }
    if (transfers.empty()) return 0;
    const auto middle = transfers.begin() + static_cast<std::ptrdiff_t>(transfers.size() / 2);
    std::nth_element(transfers.begin(), middle, transfers.end());
    return std::floor(*middle);
  }

  /// `lack`: slots that the poorest layer lacks for one token.
  int64_t Transient(const CapacitySnapshot& snapshot, int lack) const {
    if (transient_ >= 0) return LimitTransient(transient_, snapshot);
    const double window = std::min<double>(Window(), 2 * LargestTopK(*snapshot.model));
    const int64_t wanted = static_cast<int64_t>(window) + std::max(0, lack);
    return LimitTransient(std::min(wanted, snapshot.slots / 2), snapshot);
  }

  std::vector<int> Unmeasured(const CapacitySnapshot& snapshot) const {
    ShallowFirstOptions options;
    options.transient = transient_;
    if (Window() < LargestTopK(*snapshot.model)) {
      options.boundary = 0;
      if (transient_ < 0) options.transient = static_cast<int>(Transient(snapshot, 0));
    }
    return ShallowFirst(options, snapshot);
  }

  const int transient_;
  std::vector<MissCurve> curves_;
  std::vector<PrefetchOutlook> outlook_;    // now
  std::vector<PrefetchOutlook> predicted_;  // the last outlook that hides something
  bool prefetching_ = false;
  std::vector<int> capacity_;
  int64_t slots_ = -1;
  int64_t next_ = 0;  // number of a layer's calls at which to deal again
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

MissCurve::MissCurve(int experts) : recency_(experts) {
  for (int e = 0; e < experts; ++e) recency_[e] = e;
  for (Means& means : of_) {
    means.misses.assign(experts + 1, 0);
    means.hidden.assign(experts + 1, 0);
  }
}

std::vector<double> MissCurve::Misses(Part part, bool predicted) const {
  std::vector<double> misses = of_[part].misses;
  for (size_t c = 0; predicted && c < misses.size(); ++c) misses[c] -= of_[part].hidden[c];
  return misses;
}

void MissCurve::Observe(absl::Span<const int32_t> counts, const PrefetchOutlook& outlook) {
  Observe(counts, outlook, absl::MakeConstSpan(recency_).first(seen_));
  requested_.clear();
  beyond_.clear();
  const int experts = static_cast<int>(recency_.size());
  for (int c = seen_; c < experts; ++c) seen_ += counts[recency_[c]] > 0;
  for (const int32_t e : recency_) (counts[e] > 0 ? requested_ : beyond_).push_back(e);
  std::stable_sort(requested_.begin(), requested_.end(),
                   [&](int32_t a, int32_t b) { return counts[a] > counts[b]; });
  std::copy(requested_.begin(), requested_.end(), recency_.begin());
  std::copy(beyond_.begin(), beyond_.end(), recency_.begin() + requested_.size());
}

void MissCurve::Observe(absl::Span<const int32_t> counts, const PrefetchOutlook& outlook,
                        absl::Span<const int32_t> order) {
  constexpr int64_t kMemory = 1024;  // calls
  Means& all = of_[kAll];
  Means& half = of_[all.calls / kBlock % 2 == 0 ? kOneHalf : kOtherHalf];
  const double weight = 1.0 / static_cast<double>(std::min(++all.calls, kMemory));
  const double half_weight = 1.0 / static_cast<double>(std::min(++half.calls, kMemory / 2));
  // With c slots, requests of experts at place c of the order or later are misses. Walks from the
  // end, in runs of c with equally many misses.
  const double transfers = std::floor(outlook.transfers);
  int misses = 0;
  int end = static_cast<int>(recency_.size()) + 1;
  for (int c = static_cast<int>(order.size()); c-- > 0;) {
    if (counts[order[c]] <= 0) continue;
    const double hidden = std::min(outlook.recall * misses, transfers);
    Blend(c + 1, end, weight, misses, hidden, &all);
    Blend(c + 1, end, half_weight, misses, hidden, &half);
    end = c + 1;
    ++misses;
  }
  const double hidden = std::min(outlook.recall * misses, transfers);
  Blend(0, end, weight, misses, hidden, &all);
  Blend(0, end, half_weight, misses, hidden, &half);
}

void MissCurve::Blend(int begin, int end, double weight, double misses, double hidden,
                      Means* means) {
  for (int c = begin; c < end; ++c) {
    means->misses[c] += weight * (misses - means->misses[c]);
    means->hidden[c] += weight * (hidden - means->hidden[c]);
  }
}

std::vector<int> DealByCurves(const std::vector<std::vector<double>>& curves, int64_t slots) {
  struct Segment {
    double gain;  // per slot
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
  // Stable: for equal gains the shallower layer comes first, and a layer's segments stay in order.
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

std::unique_ptr<SlotDealer> MakeSlotDealer(const CapacityRule& rule) {
  switch (rule.kind) {
    case CapacityRuleKind::kShallowFirst:
      return std::make_unique<ShallowFirstDealer>(
          ShallowFirstOptions{rule.shallow, rule.transient});
    case CapacityRuleKind::kMeasured:
      return MakeMeasuredCapacity(rule.transient);
    case CapacityRuleKind::kUniform:
      break;
  }
  return std::make_unique<EvenDealer>();
}

std::unique_ptr<SlotDealer> MakeMeasuredCapacity(int transient) {
  return std::make_unique<MeasuredCapacity>(transient);
}

}  // namespace moert
