// LayerPrefetcher: admits what a prefetch policy ranks, as far as it pays.
// moert/prefetcher.h on a store that the caller holds: Resolve, Predict, then EndCall in
// each layer call.
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
  /// Its rule is carried out, where it has one. Null: prefetches nothing.
  PrefetchPolicy* policy = nullptr;
  /// Which version a prefetch brings into a cache of several; null: the best.
  PrecisionPolicy* precision = nullptr;
  const HardwareProfile* profile = nullptr;
  const LinkEstimate* link = nullptr;
  VersionedStore* store = nullptr;
  /// Not null where every expert is present in some version: a prediction is then a wish for the
  /// high one, served between steps.
  VersionManager* versions = nullptr;
  /// Try whether prefetching pays.
  bool controlled = false;
  /// A CPU beside the fast tier computes what has not arrived in time, and what it computed is
  /// brought behind it. A transfer that is longer than its window then only helps to fill a cold
  /// cache, and is not worth a prediction otherwise.
  bool cpu_offload = false;
};

class LayerPrefetcher {
 public:
  explicit LayerPrefetcher(const PrefetcherParts& parts);
  ~LayerPrefetcher();

  bool wants_next_gate(Phase phase) const;
  bool wants_resident_forward(Phase phase) const;
  /// The host has told a layer's input in `ns`, or that it cannot.
  void AskedHost(int64_t ns);
  /// [L], in decode steps: kept current; zeros while there is no prefetch. Valid as long as this.
  absl::Span<const PrefetchOutlook> outlook() const { return outlook_; }

  /// The true routing of a layer is known, at context.now_ns: account for the predictions made for
  /// it, and forget those that have not started.
  void Resolve(const PolicyContext& context, const RoutingResult& routing);
  /// Ranks and admits for the next layer. Called at `now_ns`, after the layer's own demand loads
  /// are queued. `resident_forward`: routing.next_scores are of an input that the host told.
  void Predict(const PolicyContext& context, const RoutingResult& routing, int64_t now_ns,
               bool resident_forward = false);
  /// Brings an expert that the host expects to be used.
  void Hint(const PolicyContext& context, ExpertKey key);
  /// The layer call has waited for loads from begin_ns to now_ns.
  void WaitedForLoads(int64_t begin_ns, int64_t now_ns);
  /// It has waited `ns` for experts that the CPU computes.
  void WaitedForCpu(int64_t ns) { stalled_ns_ += ns; }
  /// The layer call is over.
  void EndCall(const PolicyContext& context, int64_t tokens, int64_t now_ns);

  /// Adds to the statistics what was prefetched without the host.
  void CountServed(const ServedCount& count);

  PrefetchStats stats() const { return stats_; }

 private:
  /// For a layer that has not asked yet.
  struct Prediction {
    int layer = -1;
    int late = -1;                   // would begin in the window, admitted or not; or -1
    size_t late_rank = 0;            // of it
    std::vector<uint8_t> marks;      // [E]
    std::vector<int64_t> hidden_ns;  // [E] of an issued transfer, what fits the window
  };
  struct Ranked {
    ExpertKey key;
    int version = 0;  // to bring if absent
    bool pinned = false;
    float probability = -1;  // of its use; negative: by rank
    bool waits = false;      // a call that wants it would load it
  };

  bool Prefetching(Phase phase) const;
  int64_t WindowNs(const PolicyContext& context, const RoutingResult& routing,
                   int64_t now_ns) const;
  void Rank(PrefetchSnapshot* snapshot);
  Prediction& PredictionOf(int layer) { return predictions_[layer % 2]; }
  void Admit(const PolicyContext& context, const std::vector<PrefetchCandidate>& ranked,
             int64_t window_ns, Prediction* prediction);
  /// Begins bringing what is ranked `rank` with `left_ns` of the window left, if that pays.
  bool Begin(const PolicyContext& context, size_t rank, int64_t transfer_ns, int64_t left_ns,
             int64_t window_ns, Prediction* prediction);
  /// Whether one transfer that is longer than what is left of the window is worth its start.
  bool LatePays(size_t rank, int64_t transfer_ns, int64_t window_ns) const;
  /// Judged rank by rank: where the best are there already, the one to bring is a poor guess. A
  /// rank that was rarely seen is taken for about as good as the one before it.
  double LatePrecision(size_t rank) const;
  /// Whether a transfer of known probability saves more than it may cost: right, what fits the
  /// window of it; wrong, the rest, where somebody has to wait for the link: another expert of the
  /// layer, or of those that come while the link is held.
  bool BenefitPays(size_t rank, int64_t transfer_ns, int64_t left_ns, int64_t window_ns) const;
  /// Counts whether a call finds what it needs.
  void CountWaiting(const PolicyContext& context, const RoutingResult& routing);
  /// A block from those ranked lower, the lowest first, if need be. `hidden`: the share of the
  /// transfer that fits the window.
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
  int64_t stalled_ns_ = 0;                  // all that layer calls have waited
  int64_t step_ = -1;
  int64_t step_begin_ns_ = 0;    // routing of its first layer
  int64_t step_stalled_ns_ = 0;  // all that was waited before it
  int64_t routed_ns_ = 0;        // of the layer call
  int64_t routed_stalled_ns_ = 0;
  Prediction predictions_[2];
  /// By rank, the last: all from there on.
  std::vector<Ewma<running_mean::kLateShare>> late_;
  Ewma<running_mean::kPredictionRecall> waiting_{0.5};         // share of decode calls with a load
  std::vector<Ranked> ranked_;                                 // scratch
  std::vector<int32_t> counts_;                                // scratch, [E] predicted tokens
  std::vector<Ewma<running_mean::kPredictionRecall>> recall_;  // [L]
  std::vector<PrefetchOutlook> measured_, outlook_;  // [L]; outlook_: zeros while it is off
};

}  // namespace moert

#endif  // MOERT_LIB_PREFETCH_LAYER_PREFETCHER_H_
