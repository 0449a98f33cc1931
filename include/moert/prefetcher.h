// Prefetcher: admits what a prefetch policy ranks, as far as it pays.
//
// A prefetch is admitted while the bytes in flight fit the compute window, the time until the
// target layer asks (Fate Sec. 4.2: N = floor(T_window / T_io)). It never goes ahead of a demand
// load and is forgotten, if it has not started, when the true routing arrives.
#ifndef MOERT_PREFETCHER_H_
#define MOERT_PREFETCHER_H_

#include <cstdint>
#include <vector>

#include "moert/expert_store.h"
#include "moert/policy.h"
#include "moert/profile.h"
#include "moert/router.h"
#include "moert/stats.h"

namespace moert {

class VersionManager;

class Prefetcher {
 public:
  /// All borrowed; a null policy prefetches nothing. Where every expert is present in some version
  /// (`versions` not null), a prediction is a wish for the high one, served between steps.
  Prefetcher(const MoeModelSpec* model, PrefetchPolicy* policy, const HardwareProfile* profile,
             ExpertStore* store, VersionManager* versions, EngineStats* stats);

  bool wants_next_gate() const { return policy_ != nullptr && policy_->wants_next_gate(); }

  /// The true routing of a layer is known: account for the predictions made for it, and forget
  /// those that have not started.
  void Resolve(const PolicyContext& context, const RoutingResult& routing);
  /// Ranks and admits for the next layer. Called after the layer's own demand loads are queued.
  void Predict(const PolicyContext& context, const RoutingResult& routing);
  /// The measured time of a layer without its stalls; keeps the window current.
  void ObserveLayerTime(int64_t ns);

 private:
  const MoeModelSpec* model_;
  PrefetchPolicy* policy_;
  const HardwareProfile* profile_;
  ExpertStore* store_;
  VersionManager* versions_;
  EngineStats* stats_;
  double layer_ns_ = 0;  // running mean
  int predicted_layer_ = -1;
  std::vector<uint8_t> predicted_;  // [E] of predicted_layer_
  std::vector<uint8_t> issued_;     // [E] of predicted_layer_: a transfer was started
};

}  // namespace moert

#endif  // MOERT_PREFETCHER_H_
