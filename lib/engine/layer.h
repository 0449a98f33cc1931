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

/// The parts that a layer call passes through. All are borrowed; none is null unless noted.
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
  const std::atomic<bool>* cancelled = nullptr;  // becomes true when the step is cancelled
  const PredictNext* predict_next = nullptr;     // the step's; null: the host does not offer it
  bool fetch = false;                            // the host multiplies (Engine::Fetch)
};

/// Counts of layer calls since the runner was made.
struct LayerStats {
  // Layer calls whose experts were predicted, by the source of the prediction.
  int64_t predictions_resident_forward = 0;
  int64_t predictions_next_gate = 0;
  // Predictions that the host's routing had no scores for, since the last one that was made.
  int64_t predictions_missing = 0;
  // Time that calls had to wait, by reason, on the engine's clock.
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
  /// A call in which the host multiplies: loads the experts that `input` names and pins them into
  /// *pins, which the caller has to empty on failure. Experts that the device serves are not
  /// pinned. *device_slots: see DevicePath::PlaceSlots.
  absl::Status Fetch(LayerCall call, const FetchInput& input, Pins* pins,
                     const int32_t** device_slots);
  /// Whether calls without misses run on the device alone: no policy has to see a routing before it
  /// is executed.
  bool runs_resident() const { return runs_resident_; }
  /// OK: captured calls may miss experts, which the device brings without the host. Otherwise the
  /// reason why not. Called before the first layer call.
  absl::Status ServeMisses();
  /// The same for Fetch with ids on the device, outside of captures too.
  void ServeFetches();
  bool serves_fetches() const { return serves_fetches_; }
  /// Whether the device may serve the misses of such a call.
  bool Serves(int layer, const FetchInput& input) const;
  /// Whether the store's blocks are lent to the device (DeviceCache::lent).
  bool lent() const { return device_cache_->lent(); }
  /// Called before the host uses the store: DeviceCache::TakeBack.
  absl::Status TakeBack();

  /// Takes the counts of replays that have arrived, so that the device may copy the next ones.
  void TakeSelections();
  /// Accounts for calls whose routing has arrived since they returned, or whose selections were
  /// taken.
  void CollectLate(PolicyContext context);

  LayerStats stats() const { return stats_; }

 private:
  // The stages of a call, in order.

  absl::Status Route(const LayerCall& call);
  void Plan(const LayerCall& call);
  /// Brings all experts of the plan and multiplies them as they arrive. For a fetch they stay
  /// pinned in batch_ instead.
  absl::Status BringExperts(const LayerCall& call);
  /// Called after a call: lets the cache change in response to the experts that the call used.
  void EndCacheUse(const LayerCall& call);
  /// Replaces lower versions that the call used, if the policy wants that.
  void Upgrade(const LayerCall& call);
  void EndCall(const LayerCall& call, int64_t stalled_ns);

  /// OK: the strategy's rules allow the device to decide evictions and prefetches. Otherwise the
  /// reason why not.
  absl::Status CheckRules() const;
  /// Whether the call can run without the host: nothing can be missing.
  bool CanRunResident(const LayerCall& call) const;
  bool NothingMissing(int layer) const;

  // Route.

  absl::Status SetGivenRouting(const LayerCall& call, const RoutingRequest& request);
  /// If the routing is on the device, brings it, so that *given is in host memory.
  absl::Status BringGivenRouting(const LayerCall& call, RoutedInput* given);
  /// Whether the next layer's gate has to be scored beside this one's.
  bool WantsNextGate(const LayerCall& call) const;

  // Load and multiply.

  /// Starts loads of plan_.load from *next on, as many as there are blocks.
  void StartLoads(const LayerCall& call, size_t* next);
  /// The error if no block is free and none will be; `waiting` loads have not started.
  absl::Status NoBlockLeft(const LayerCall& call, size_t waiting) const;
  absl::Status CollectArrived(const LayerCall& call);
  /// After a prefetch that the call waited for has failed: starts the call's own load, once.
  bool LoadAgain(int32_t expert);
  /// If an expert is usable, pins it and adds it to the batch that is multiplied next.
  bool Claim(const LayerCall& call, int32_t expert);
  /// Multiplies the batch and unpins it.
  absl::Status Multiply(const LayerCall& call, bool first);
  /// Waits for the CPU beside the fast tier, which on the virtual clock is done at done_ns.
  absl::Status JoinCpu(const LayerCall& call, int64_t done_ns);
  void CountStall(const LayerCall& call, int64_t begin_ns);
  /// The policy that chooses versions for a cache; null: always the best version.
  PrecisionPolicy* Precision() const {
    return parts_.versions == nullptr ? parts_.strategy->precision.get() : nullptr;
  }

  // Used by Fetch only.

  /// For a call that can run without the host: pins the whole layer.
  void PinLayer(int layer, Pins* pins);
  static absl::Status NotCaptured(int layer);
  absl::Status BringFetched(const LayerCall& call, const FetchInput& input, Pins* pins);
  absl::Status SetFetchRouting(const LayerCall& call, const FetchInput& input);
  /// Refuses a call that needs more blocks than it can get.
  absl::Status CheckRoom(int layer) const;
  absl::Status TooMany(int layer, int64_t wanted, int64_t most) const;

  // Predict.

  /// `given`: the host gave the routing.
  void Predict(const LayerCall& call, bool given);
  /// Whether to predict the next layer's input from this call's partial output.
  bool WantsForward(const LayerCall& call) const;
  /// Asks the host to predict that input from the experts of the first batch, and computes new
  /// next_scores. If the host declines, the next layer's gate is scored on this call's input.
  absl::Status PredictForward(const LayerCall& call, absl::Span<const int32_t> computed);

  /// Accounts for resident calls whose routing has arrived.
  void CollectRoutings();
  void Span(const LayerCall& call, TimelineTrack track, absl::string_view name, int64_t begin_ns);

  const LayerParts parts_;
  DevicePath* const device_;  // the executor's, as the three below
  DeviceCache* const device_cache_;
  CpuOffload* const cpu_;
  ResidentForward* const forwarder_;
  const bool runs_resident_;
  bool serves_misses_ = false;
  bool serves_fetches_ = false;
  LayerStats stats_;

  // State of the current call.
  RoutingResult routing_;
  LayerPlan plan_;
  std::vector<int32_t> batch_;   // pinned experts that are multiplied next
  std::vector<int32_t> flying_;  // experts on their way
  std::vector<int32_t> again_;   // experts whose load was started a second time
  std::vector<ReadyExpert> ready_;
  CallTimes times_;
  bool forward_predicted_ = false;  // next_scores come from the host's prediction
  std::vector<float> gate_scores_;  // of the next layer's gate on this call's input, for traces
  std::vector<uint8_t> computed_;   // [E]: experts of the first batch
  std::vector<int32_t> given_ids_;  // brought from the device
  std::vector<float> given_weights_;

  // Routings of calls that have returned.
  RoutingResult late_routing_;
  std::vector<SelectionCount> selections_;
  bool selected_ = false;  // selections_ has counts
};

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_LAYER_H_
