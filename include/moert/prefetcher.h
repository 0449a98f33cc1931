// Prefetcher: brings the experts that a policy expects the next layer to use, as far as that pays.
//
//   prefetcher->Observe(layer, phase, routing);   // the layer has been routed
//   lease = store->Fetch(misses);                 // go first
//   prefetcher->Predict(layer, phase, routing);   // begins transfers for the layer behind it
//   Multiply(*lease);
//   prefetcher->EndStep();                        // behind the last layer
//
// Candidates are loaded best first, as long as their transfers fit the window, the time until the
// next layer asks (Fate Sec. 4.3: N = floor(T_window / T_io)); both times are measured
// continuously. A transfer that begins but does not end in the window is started all the same if
// such predictions have been right often enough. A prefetch never goes ahead of a Fetch and
// replaces no expert that the same prediction ranks higher. It is cancelled if it has not begun to
// move when the true routing arrives. Decode steps without prefetch are tried now and then:
// prefetching pauses while they are faster, or while predictions save less than they cost. One call
// at a time per object; other threads may use the store meanwhile. Nothing blocks on a transfer.
#ifndef MOERT_PREFETCHER_H_
#define MOERT_PREFETCHER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "moert/expert_store.h"
#include "moert/policy.h"
#include "moert/router.h"
#include "moert/tools/profile.h"

namespace moert {

/// Counts of a prefetcher since it was made.
struct PrefetchStats {
  int64_t issued = 0;              // began to move
  int64_t cancelled = 0;           // were queued, but the true routing came first
  int64_t active = 0;              // issued ones whose expert the target layer's true routing used
  int64_t top_score = 0;           // ... or had as top-score (under the expert-cache rule)
  int64_t predicted = 0;           // experts used by layers that had a prediction
  int64_t recalled = 0;            // of these, experts that the prediction named
  int64_t recalled_in_window = 0;  // of the latter, experts present, in flight or admitted
  bool disabled = false;           // prefetching is off in decode steps: it did not pay
  int64_t disabled_steps = 0;      // decode steps that ran with it off
  int64_t trials = 0;              // blocks of steps tried in the other mode
  int64_t switches = 0;            // of these, those after which the mode changed
  int64_t policy_fallbacks = 0;    // invalid candidates and versions
};

struct PrefetcherOptions {
  HardwareProfile profile = {};  // times of windows and transfers until they are measured
  bool controlled = true;  // measures whether prefetching pays, pauses it if not; false: always on
};

class Prefetcher {
 public:
  /// `policy` and `store` are borrowed and must outlive this; at most one prefetcher a store.
  /// InvalidArgument for a null one, FailedPrecondition for a store that has one.
  static absl::StatusOr<std::unique_ptr<Prefetcher>> Create(PrefetchPolicy* policy,
                                                            ExpertStore* store,
                                                            PrefetcherOptions options);
  ~Prefetcher();

  /// Whether Predict needs RoutingResult::next_scores (Router::Route with `next_gate`).
  bool wants_next_gate(Phase phase) const;

  /// Reports the true routing of a layer: counts how its predictions turned out, and cancels its
  /// prefetches that have not begun to move and are not needed. Layers of a step come in order.
  /// Reads tokens, num_experts and counts of `routing`; policies also read ids, weights and scores.
  absl::Status Observe(int layer, Phase phase, const RoutingResult& routing);
  /// Ranks experts of the layer after `layer` (the first layer after the last one) and starts to
  /// load them. `routing` as for Observe, with next_scores if the policy wants them.
  absl::Status Predict(int layer, Phase phase, const RoutingResult& routing);
  void EndStep();  // the last layer's call is over

  PrefetchStats stats() const;

 private:
  struct Impl;
  explicit Prefetcher(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace moert

#endif  // MOERT_PREFETCHER_H_
