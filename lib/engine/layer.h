// One MoE layer call, and the objects it passes through.
#ifndef MOERT_LIB_ENGINE_LAYER_H_
#define MOERT_LIB_ENGINE_LAYER_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "engine/charges.h"
#include "exec/executor.h"
#include "moert/engine.h"
#include "moert/policy.h"
#include "moert/router.h"
#include "moert/strategy.h"
#include "moert/tools/trace.h"
#include "plan/layer_planner.h"
#include "prefetch/layer_prefetcher.h"
#include "store/acquire.h"
#include "store/version_manager.h"
#include "store/versioned_store.h"

namespace moert {

/// The parts that a layer call passes through. All borrowed, none null but where it says so.
struct LayerParts {
  const MoeModelSpec* model = nullptr;
  const Strategy* strategy = nullptr;
  ResidencyPolicy* residency = nullptr;  // the strategy's, or the default
  Clock* clock = nullptr;
  Charges* charges = nullptr;
  Router* router = nullptr;
  LayerPrefetcher* prefetcher = nullptr;
  LayerPlanner* scheduler = nullptr;
  VersionedStore* store = nullptr;
  VersionManager* versions = nullptr;  // null: a plain cache
  Executor* executor = nullptr;
  TraceSink* trace = nullptr;  // null: none
};

/// One call: which layer, for which step, over which rows.
struct LayerCall {
  PolicyContext context;
  ExecutorCall exec;
  const RoutedInput* routed = nullptr;  // null: routed by the gate
  int64_t step_begin_ns = 0;
  const std::atomic<bool>* cancelled = nullptr;  // becomes true when nobody wants the output
  const PredictNext* predict_next = nullptr;     // of the step; null: not offered
  bool fetch = false;                            // the product is the host's
};

/// Counts of layer calls since the runner was made.
struct LayerStats {
  // Layer calls whose experts were predicted, by what.
  int64_t predictions_resident_forward = 0;
  int64_t predictions_next_gate = 0;
  // Wanted, and the host's routing had no scores for them; since experts were predicted last.
  int64_t predictions_missing = 0;
  // Time a call could not go on, by reason, in the engine's clock.
  int64_t stall_miss_ns = 0;
  int64_t stall_queue_ns = 0;
  int64_t stall_cpu_ns = 0;
  int64_t policy_fallbacks = 0;

  int64_t stalled_ns() const { return stall_miss_ns + stall_queue_ns + stall_cpu_ns; }
};

/// Runs layer calls, one at a time.
class LayerRunner {
 public:
  explicit LayerRunner(const LayerParts& parts);

  absl::Status Forward(LayerCall call);
  /// A call without a product: brings what `input` names and pins it into *pins, which is to be
  /// emptied on failure; what the device serves is pinned by nobody. *device_slots: see
  /// Executor::PlaceSlots.
  absl::Status Fetch(LayerCall call, const FetchInput& input, Pins* pins,
                     const int32_t** device_slots);
  /// Whether calls that miss nothing run on the device alone: nothing has to see a routing before
  /// it is executed.
  bool runs_resident() const { return runs_resident_; }
  /// OK: captured calls need not hold their experts, what is missing is brought without the host.
  /// Else why not. Before the first call.
  absl::Status ServeMisses();
  /// The same for Fetch with ids on the device, outside of captures too.
  void ServeFetches();
  bool serves_fetches() const { return serves_fetches_; }
  /// Whether the device may serve what is missing in such a call.
  bool Serves(int layer, const FetchInput& input) const;
  /// Whether the store's blocks are lent to the device (DeviceCache::lent).
  bool lent() const { return device_cache_->lent(); }
  /// Before the host uses the store: DeviceCache::TakeBack.
  absl::Status TakeBack();

  /// Fetches the counts of replays that have arrived; the device may then bring others.
  void TakeSelections();
  /// Accounts for calls whose routing has arrived since they returned, or whose selections were
  /// taken.
  void CollectLate(PolicyContext context);

  LayerStats stats() const { return stats_; }

 private:
  // The path of a call, in order.

  absl::Status Route(const LayerCall& call);
  void Plan(const LayerCall& call);
  /// Until all experts of the plan were there: multiplied as they came, or, of a
  /// fetch, in batch_, pinned.
  absl::Status BringExperts(const LayerCall& call);
  /// Behind a call: lets the cache change by what the call used.
  void EndCacheUse(const LayerCall& call);
  /// Lower versions that the call used are replaced, if the policy wants that.
  void Upgrade(const LayerCall& call);
  void EndCall(const LayerCall& call, int64_t stalled_ns);

  /// OK: the device can decide who leaves and what is prefetched. Else why not.
  absl::Status CheckRules() const;
  /// Whether the call can run without the host: nothing can be missing.
  bool CanRunResident(const LayerCall& call) const;
  bool NothingMissing(int layer) const;

  // Route.

  absl::Status SetGivenRouting(const LayerCall& call, const RoutingRequest& request);
  /// Where it lies on the device: brings it, so that given is in host memory.
  absl::Status BringGivenRouting(const LayerCall& call, RoutedInput* given);
  /// Whether the next layer's gate has to be scored beside this one's.
  bool WantsNextGate(const LayerCall& call) const;

  // Fetch and multiply.

  /// Starts loads of plan_.load from *next on, as many as there are blocks.
  void StartLoads(const LayerCall& call, size_t* next);
  /// No block is free and none will be; `waiting` experts have not begun to move.
  absl::Status NoBlockLeft(const LayerCall& call, size_t waiting) const;
  absl::Status CollectArrived(const LayerCall& call);
  /// A prefetch that the call waited for has failed: the call loads for itself. Once.
  bool LoadAgain(int32_t expert);
  /// Puts an expert into the batch that is multiplied next, pinned, if it is usable.
  bool Claim(const LayerCall& call, int32_t expert);
  /// Multiplies the batch and unpins it.
  absl::Status Multiply(const LayerCall& call, bool first);
  /// Waits for the CPU beside the fast tier; on the virtual clock it is done at done_ns.
  absl::Status JoinCpu(const LayerCall& call, int64_t done_ns);
  void CountStall(const LayerCall& call, int64_t begin_ns);
  /// The policy of a cache's versions; null: always the best.
  PrecisionPolicy* Precision() const {
    return parts_.versions == nullptr ? parts_.strategy->precision.get() : nullptr;
  }

  // Fetch alone.

  /// The same for a call that can run without the host: pins the whole layer.
  void PinLayer(int layer, Pins* pins);
  absl::Status BringFetched(const LayerCall& call, const FetchInput& input, Pins* pins);
  absl::Status SetFetchRouting(const LayerCall& call, const FetchInput& input);
  /// Refuses a call that needs more blocks than it can have.
  absl::Status CheckRoom(int layer) const;
  absl::Status TooMany(int layer, int64_t wanted, int64_t most) const;

  // Predict.

  /// `given`: the routing, by the host.
  void Predict(const LayerCall& call, bool given);
  /// Whether the next layer's input shall be predicted from this call's partial output.
  bool WantsForward(const LayerCall& call) const;
  /// Has the host predict it, from the experts of the first batch: new next_scores. On the host's
  /// refusal those of the next layer's gate.
  absl::Status PredictForward(const LayerCall& call, absl::Span<const int32_t> computed);

  /// Accounts for resident calls whose routing has arrived.
  void CollectRoutings();
  void Span(const LayerCall& call, TimelineTrack track, absl::string_view name, int64_t begin_ns);

  const LayerParts parts_;
  DevicePath* const device_;          // of the executor, as below
  DeviceCache* const device_cache_;   // likewise
  CpuOffload* const cpu_;             // likewise
  ResidentForward* const forwarder_;  // likewise
  const bool runs_resident_;
  bool serves_misses_ = false;
  bool serves_fetches_ = false;
  LayerStats stats_;

  // The routing of the call.
  RoutingResult routing_;
  LayerPlan plan_;
  std::vector<int32_t> batch_;   // experts that are multiplied next, pinned
  std::vector<int32_t> flying_;  // experts on their way
  std::vector<int32_t> again_;   // those that were queued a second time
  std::vector<ReadyExpert> ready_;
  CallTimes times_;
  bool forward_predicted_ = false;  // next_scores come from the host's prediction
  std::vector<float> gate_scores_;  // of the next layer's gate, where the host told its input
  std::vector<uint8_t> computed_;   // [E]: of the first batch
  std::vector<int32_t> given_ids_;  // brought from the device
  std::vector<float> given_weights_;

  // The routing of calls that have returned.
  RoutingResult late_routing_;
  std::vector<SelectionCount> selections_;
  bool selected_ = false;  // there are some
};

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_LAYER_H_
