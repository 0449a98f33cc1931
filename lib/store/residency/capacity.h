// How the slots of a cache are dealt to layers (CapacityRule).
//
// There are two rules in addition to the even one. ShallowFirst is the paper's (Fate Sec. 4.4): the
// first S layers are filled, the deep ones share the rest. It works if a prefetch can bring
// everything that a deep layer misses. If the window holds fewer transfers, deep layers without
// slots starve. MeasuredCapacity therefore measures how many misses a layer would have with c
// slots, for every c at once, subtracts the misses that prefetching can hide, and deals the slots
// to the layers where they save most. It favours the shallow layers, which predictions reach badly,
// if that pays.
#ifndef MOERT_LIB_STORE_RESIDENCY_CAPACITY_H_
#define MOERT_LIB_STORE_RESIDENCY_CAPACITY_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "moert/policy.h"

namespace moert {

/// Carries out a CapacityRule.
class SlotDealer {
 public:
  virtual ~SlotDealer() = default;
  /// As ResidencyPolicy::Capacity. Slots that it leaves over are transient: experts that pass
  /// through layers that are full or have no slots use them (VersionedStore::StartLoad).
  virtual std::vector<int> Capacity(const CapacitySnapshot& snapshot) = 0;
  /// See Policy.
  virtual int64_t StateBytes(const PolicyScope& /*scope*/) const { return 0; }
  /// Receives every layer call's routing (kRouted). `order`: the layer's experts that were ever
  /// requested, in the order in which the cache would have kept them when the call came; empty: by
  /// recency.
  virtual void Observe(const LayerEvent& event, absl::Span<const int32_t> order) {}
  void Observe(const LayerEvent& event) { Observe(event, {}); }
};

struct ShallowFirstOptions {
  /// Layers filled first. Negative: a sixth of all, at least one: nothing predicts layer 0, and the
  /// paper found 4 of 24.
  int boundary = -1;
  /// Transient slots. Negative: the experts of one token plus as many predicted ones, at most a
  /// quarter of all slots. None if every expert has a slot.
  int transient = -1;
};
/// The boundary by measured accuracies (Fate Sec. 4.4): accuracy[l] is the share of layer l's
/// experts that are predicted; accuracy[0] is ignored, as nothing predicts layer 0. The shallow
/// layers are those before the first well predicted one, whose accuracy is at most 0.03 below the
/// median. A poorly predicted layer further down is not shallow and gains nothing by the rule. At
/// least 1.
int ShallowBoundary(absl::Span<const double> accuracy);

/// The even dealer returns nothing, which stands for the default (UniformCapacity).
std::unique_ptr<SlotDealer> MakeSlotDealer(const CapacityRule& rule);

std::vector<int> ShallowFirst(const ShallowFirstOptions& options, const CapacitySnapshot& snapshot);

/// kMeasured. `transient` as above, but negative: as many as the window holds transfers, plus the
/// slots that the poorest layer lacks for one token. Until decode steps have been measured:
/// ShallowFirst if the window holds the transfers that a token needs, else even.
std::unique_ptr<SlotDealer> MakeMeasuredCapacity(int transient);

/// Expected misses of a layer call, as a function of the layer's slots.
class MissCurve {
 public:
  explicit MissCurve(int experts);

  /// Adds a decode call. Misses with c slots are those of an LRU cache of c (Mattson's stack
  /// distances). An expert's first request is a miss with any number of slots, and is left out. The
  /// predictions of `outlook` hide the misses that they name, as many as fit the window.
  void Observe(absl::Span<const int32_t> counts, const PrefetchOutlook& outlook);
  /// For the means of three parts and three lists of experts.
  static constexpr int64_t kBytesPerExpert = 3 * 2 * sizeof(double) + 3 * sizeof(int32_t);
  /// The same for a cache that keeps the first c experts of `order`, all that were ever requested.
  void Observe(absl::Span<const int32_t> counts, const PrefetchOutlook& outlook,
               absl::Span<const int32_t> order);
  int64_t calls() const { return of_[kAll].calls; }

  /// Means are kept for all calls and for two halves: alternating blocks of kBlock calls.
  /// Capacities chosen by one half are judged by the other, which is from another time.
  static constexpr int64_t kBlock = 32;
  enum Part { kAll, kOneHalf, kOtherHalf };
  /// [E + 1], by number of slots. predicted: without the misses that predictions hide.
  std::vector<double> Misses(Part part, bool predicted) const;

 private:
  struct Means {
    int64_t calls = 0;
    std::vector<double> misses, hidden;
  };

  /// Adds a sample to the means for begin <= c < end slots.
  static void Blend(int begin, int end, double weight, double misses, double hidden, Means* means);

  std::array<Means, 3> of_;                  // by Part
  int seen_ = 0;                             // experts requested so far
  std::vector<int32_t> recency_;             // most recent first; the first seen_ were requested
  std::vector<int32_t> beyond_, requested_;  // scratch
};

/// The capacities c_l, with sum c_l <= slots, that minimize the sum of the lower convex hulls of
/// curves[l][c_l]: optimal if the curves are convex.
std::vector<int> DealByCurves(const std::vector<std::vector<double>>& curves, int64_t slots);

}  // namespace moert

#endif  // MOERT_LIB_STORE_RESIDENCY_CAPACITY_H_
