// LayerPrefetcher: starts the prefetches that a policy ranks, as far as they pay. It implements
// moert/prefetcher.h on a store that the caller holds. Each layer call does Resolve, Predict, then
// EndCall.
#ifndef MOERT_LIB_PREFETCH_LAYER_PREFETCHER_H_
#define MOERT_LIB_PREFETCH_LAYER_PREFETCHER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "base/ewma.h"
#include "moert/policy.h"
#include "moert/prefetcher.h"
#include "moert/router.h"
#include "moert/tools/profile.h"
#include "store/versioned_store.h"

namespace moert {

class LinkEstimate;
class PredictionModes;
class VersionManager;
class WindowEstimate;

/// The parts of a LayerPrefetcher; all borrowed.
struct PrefetcherParts {
  const MoeModelSpec* model = nullptr;
  /// If the policy has a rule, the rule is carried out. Null: prefetches nothing.
  PrefetchPolicy* policy = nullptr;
  /// Chooses the version that a prefetch brings into a cache of several versions; null: the best.
  PrecisionPolicy* precision = nullptr;
  const HardwareProfile* profile = nullptr;
  const LinkEstimate* link = nullptr;
  VersionedStore* store = nullptr;
  /// Not null if every expert is present in some version: a prediction is then a wish for the high
  /// version, which is fulfilled between steps.
  VersionManager* versions = nullptr;
  /// Whether to find out by trials whether prefetching pays.
  bool controlled = false;
  /// A CPU beside the fast tier computes experts that have not arrived in time, and they are loaded
  /// afterwards. A transfer that is longer than its window then only helps to fill a cold cache,
  /// and is not worth a prediction otherwise.
  bool cpu_offload = false;
};

class LayerPrefetcher {
 public:
  explicit LayerPrefetcher(const PrefetcherParts& parts);
  ~LayerPrefetcher();

  bool wants_next_gate(Phase phase) const;
  bool wants_resident_forward(Phase phase) const;
  /// Reports that the host took `ns` to predict a layer's input, or to decline.
  void AskedHost(int64_t ns);
  /// The outlook for decode steps, [L], kept up to date; zeros while nothing is prefetched. Valid
  /// as long as this object.
  absl::Span<const PrefetchOutlook> outlook() const { return outlook_; }

  /// Called when the true routing of a layer is known, at context.now_ns: accounts for the
  /// predictions made for the layer, and cancels prefetches that have not started.
  void Resolve(const PolicyContext& context, const RoutingResult& routing);
  /// Ranks experts of the next layer and starts prefetches. Called at `now_ns`, after the layer's
  /// own demand loads are queued. `resident_forward`: routing.next_scores are of an input that the
  /// host predicted.
  void Predict(const PolicyContext& context, const RoutingResult& routing, int64_t now_ns,
               bool resident_forward = false);
  /// Prefetches an expert that the host expects to be used.
  void Hint(const PolicyContext& context, ExpertKey key);
  /// Reports that the layer call waited for loads from begin_ns to now_ns.
  void WaitedForLoads(int64_t begin_ns, int64_t now_ns);
  /// Reports that it waited `ns` for experts that the CPU computes.
  void WaitedForCpu(int64_t ns) { stalled_ns_ += ns; }
  /// Ends the layer call.
  void EndCall(const PolicyContext& context, int64_t tokens, int64_t now_ns);

  /// Adds the counts of prefetches that a device made without the host.
  void CountServed(const ServedCount& count);

  PrefetchStats stats() const { return stats_; }

 private:
  /// The prediction for a layer that has not been routed yet.
  struct Prediction {
    int layer = -1;
    int late = -1;                   // expert whose transfer begins in the window but ends later
    size_t late_rank = 0;            // its rank
    std::vector<uint8_t> marks;      // [E]
    std::vector<int64_t> hidden_ns;  // [E] the part of an issued transfer that fits the window
  };
  struct Ranked {
    ExpertKey key;
    int version = 0;  // to load if absent
    bool pinned = false;
    float probability = -1;  // of its use; negative: known by rank only
    bool waits = false;      // a call that needs it would load it
  };

  bool Prefetching(Phase phase) const;
  int64_t WindowNs(const PolicyContext& context, const RoutingResult& routing,
                   int64_t now_ns) const;
  void Rank(PrefetchSnapshot* snapshot);
  Prediction& PredictionOf(int layer) { return predictions_[layer % 2]; }
  void Admit(const PolicyContext& context, const std::vector<PrefetchCandidate>& ranked,
             int64_t window_ns, Prediction* prediction);
  /// Starts the prefetch of the expert at `rank` if that pays; `left_ns` of the window are left.
  bool Begin(const PolicyContext& context, size_t rank, int64_t transfer_ns, int64_t left_ns,
             int64_t window_ns, Prediction* prediction);
  /// Whether it pays to start a transfer that is longer than the rest of the window.
  bool LatePays(size_t rank, int64_t transfer_ns, int64_t window_ns) const;
  /// The share of late prefetches at `rank` that were used. Measured for each rank, because if the
  /// best ranked experts are present already, the one to load is a poor guess. A rank with few
  /// samples is taken to be about as good as the one before it.
  double LatePrecision(size_t rank) const;
  /// Whether a transfer with a known probability saves more than it costs. If the prediction is
  /// right, it saves the part that fits the window. If it is wrong, the rest is lost whenever a
  /// call waits for the link: for another expert of the layer, or of layers that come while the
  /// link is busy.
  bool BenefitPays(size_t rank, int64_t transfer_ns, int64_t left_ns, int64_t window_ns) const;
  /// Counts whether a call has to load experts.
  void CountWaiting(const PolicyContext& context, const RoutingResult& routing);
  /// Starts a load. If necessary, takes a block from experts that are ranked lower, the lowest
  /// first. `hidden`: the share of the transfer that fits the window.
  bool StartLoad(const PolicyContext& context, size_t rank, float hidden, Prediction* prediction);

  const MoeModelSpec* model_;
  std::unique_ptr<PrefetchPolicy> by_rule_;
  PrefetchPolicy* policy_;  // by_rule_, or the caller's; null: prefetches nothing
  PrecisionPolicy* precision_policy_;
  const LinkEstimate* link_;
  bool cpu_offload_;
  VersionedStore* store_;
  VersionManager* versions_;
  PrefetchStats stats_;
  std::unique_ptr<WindowEstimate> window_;
  std::unique_ptr<PredictionModes> modes_;  // null: always on
  int64_t stalled_ns_ = 0;                  // total waiting time of layer calls
  int64_t step_ = -1;
  int64_t step_begin_ns_ = 0;      // time of the routing of its first layer
  int64_t step_stalled_ns_ = 0;    // stalled_ns_ at that time
  int64_t routed_ns_ = 0;          // time of the last routing
  int64_t routed_stalled_ns_ = 0;  // stalled_ns_ at that time
  Prediction predictions_[2];
  /// Precision of late prefetches by rank; the last entry is for all higher ranks.
  std::vector<Ewma<running_mean::kLateShare>> late_;
  Ewma<running_mean::kPredictionRecall> waiting_{0.5};         // share of decode calls with a load
  std::vector<Ranked> ranked_;                                 // scratch
  std::vector<int32_t> counts_;                                // scratch, [E] predicted tokens
  std::vector<Ewma<running_mean::kPredictionRecall>> recall_;  // [L]
  std::vector<PrefetchOutlook> measured_, outlook_;  // [L]; outlook_: zeros while prefetch is off
};

}  // namespace moert

#endif  // MOERT_LIB_PREFETCH_LAYER_PREFETCHER_H_
