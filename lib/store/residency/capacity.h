// How the slots of a cache are dealt to layers (CapacityRule).
//
// Two rules beside the even one. ShallowFirst is the paper's (Fate Sec. 4.4): the first S layers
// are filled, the deep ones share the rest. It is right where a prefetch can bring whatever a deep
// layer misses, and wrong where the window holds fewer transfers than that: then deep layers
// without slots starve. MeasuredCapacity therefore measures how many misses a layer would have with
// c slots, for every c at once, takes off what prefetching can hide, and deals the slots to where
// they spare the most; layers that predictions reach badly, the shallow ones, come out favoured
// when it pays.
#ifndef MOERT_LIB_STORE_RESIDENCY_CAPACITY_H_
#define MOERT_LIB_STORE_RESIDENCY_CAPACITY_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "moert/policy.h"

namespace moert {

/// Carries a CapacityRule out.
class SlotDealer {
 public:
  virtual ~SlotDealer() = default;
  /// As ResidencyPolicy::Capacity. Slots that it leaves over are transient: what passes through
  /// layers that are full or have none uses them (VersionedStore::StartLoad).
  virtual std::vector<int> Capacity(const CapacitySnapshot& snapshot) = 0;
  /// See Policy.
  virtual int64_t StateBytes(const PolicyScope& /*scope*/) const { return 0; }
  /// Every layer call's routing (kRouted). `order`: the layer's experts that were ever requested,
  /// in the order in which the cache would have kept them when the call came; empty: by recency.
  virtual void Observe(const LayerEvent& event, absl::Span<const int32_t> order) {}
  void Observe(const LayerEvent& event) { Observe(event, {}); }
};

struct ShallowFirstOptions {
  /// Layers filled first. Negative: a sixth of all, at least one: nothing predicts layer 0, and the
  /// paper found 4 of 24.
  int boundary = -1;
  /// Transient slots. Negative: those of a token and a prediction of as many, at most a quarter of
  /// all. None when every expert has a slot.
  int transient = -1;
};
/// The boundary that layer accuracies give (Fate Sec. 4.4): accuracy[l] is the share of layer l's
/// experts that are predicted; accuracy[0], where nothing predicts, is ignored. Shallow are the
/// layers in front of the first that is predicted well: by at most 0.03 less than the median layer.
/// A poorly predicted layer further down is not shallow and gains nothing by the rule. At least 1.
int ShallowBoundary(absl::Span<const double> accuracy);

/// An even dealer answers nothing, which is the default of the seam (UniformCapacity).
std::unique_ptr<SlotDealer> MakeSlotDealer(const CapacityRule& rule);

std::vector<int> ShallowFirst(const ShallowFirstOptions& options, const CapacitySnapshot& snapshot);

/// kMeasured. `transient` as above, but negative: what the window holds, and what a token needs
/// where a layer has less. Until decode steps were measured, ShallowFirst where the window holds
/// what a token needs, else even.
std::unique_ptr<SlotDealer> MakeMeasuredCapacity(int transient);

/// Expected misses of a layer call, as a function of the layer's slots.
class MissCurve {
 public:
  explicit MissCurve(int experts);

  /// A decode call. Misses with c slots are those of an LRU cache of c (Mattson's stack distances);
  /// an expert's first request is missed whatever the slots, and left out. A prediction of
  /// `outlook` hides what it names among the misses, as many as fit its window.
  void Observe(absl::Span<const int32_t> counts, const PrefetchOutlook& outlook);
  /// Means of three parts, and three lists of experts.
  static constexpr int64_t kBytesPerExpert = 3 * 2 * sizeof(double) + 3 * sizeof(int32_t);
  /// The same for a cache that keeps the first c experts of `order`, all that were ever requested.
  void Observe(absl::Span<const int32_t> counts, const PrefetchOutlook& outlook,
               absl::Span<const int32_t> order);
  int64_t calls() const { return of_[kAll].calls; }

  /// Counts are of all calls, or of every other kBlock ones: what is chosen by the one half is
  /// judged by the other, which is of another time.
  static constexpr int64_t kBlock = 32;
  enum Part { kAll, kOneHalf, kOtherHalf };
  /// [E + 1], by slots; predicted: less what predictions hide.
  std::vector<double> Misses(Part part, bool predicted) const;

 private:
  struct Means {
    int64_t calls = 0;
    std::vector<double> misses, hidden;
  };

  /// Into the means for begin <= c < end slots.
  static void Blend(int begin, int end, double weight, double misses, double hidden, Means* means);

  std::array<Means, 3> of_;                  // by Part
  int seen_ = 0;                             // experts requested so far
  std::vector<int32_t> recency_;             // most recent first; begins with those seen
  std::vector<int32_t> beyond_, requested_;  // scratch
};

/// The capacities with the smallest sum of curves[l][c_l], sum c_l <= slots: the best of the lower
/// convex hulls, so optimal where the curves are convex.
std::vector<int> DealByCurves(const std::vector<std::vector<double>>& curves, int64_t slots);

}  // namespace moert

#endif  // MOERT_LIB_STORE_RESIDENCY_CAPACITY_H_
