// One MoE layer call, and the objects it passes through.
#ifndef MOERT_LIB_ENGINE_LAYER_H_
#define MOERT_LIB_ENGINE_LAYER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/aligned_array.h"
#include "base/clock.h"
#include "base/thread_pool.h"
#include "exec/backend.h"
#include "moert/engine.h"
#include "moert/expert_source.h"
#include "moert/expert_store.h"
#include "moert/mixed_group_gemm.h"
#include "moert/policy.h"
#include "moert/prefetcher.h"
#include "moert/router.h"
#include "moert/scheduler.h"
#include "moert/strategy.h"
#include "moert/trace.h"
#include "store/version_manager.h"

namespace moert {

/// Everything a layer call uses. Borrowed from the engine.
struct LayerParts {
  const MoeModelSpec* model = nullptr;
  const HardwareProfile* profile = nullptr;
  std::vector<std::string> version_names;  // served versions, for the profile's rates
  const std::vector<LayerConstants>* constants = nullptr;
  // [L] shared expert records, 64-byte aligned as the kernels need them; null where there is none.
  std::vector<const std::byte*> shared_records;
  Strategy* strategy = nullptr;
  ResidencyPolicy* residency = nullptr;  // the strategy's, or the default
  Router* router = nullptr;
  ExpertStore* store = nullptr;
  Prefetcher* prefetcher = nullptr;
  Scheduler* scheduler = nullptr;
  VersionManager* versions = nullptr;  // null for a plain cache
  MixedGroupGemm* gemm = nullptr;
  ThreadPool* pool = nullptr;
  Clock* clock = nullptr;
  VirtualClock* virtual_clock = nullptr;  // null on the wall clock
  TraceSink* trace = nullptr;             // null: none
  bool simulate = false;                  // no arithmetic
  DeviceExecutor* device = nullptr;       // null: the arithmetic runs on the CPU
  int best_version = 0;                   // of the source: what a CPU beside the device multiplies
};

/// One call: which layer, for which step, over which rows.
struct LayerCall {
  PolicyContext context;
  int64_t epoch = 0;         // of the step, see ExpertStore::OpenStep
  const float* x = nullptr;  // [tokens, hidden] fp32, contiguous; unused under simulate
  int64_t tokens = 0;
  const RoutedInput* routed = nullptr;  // null: routed by the gate
  int64_t step_begin_ns = 0;
  const std::atomic<bool>* cancelled = nullptr;  // becomes true when nobody wants the output
  const PredictNext* predict_next = nullptr;     // of the step; null: not offered
  DeviceCall device;  // where a device executes; x and out are then unused
};

/// What layer calls counted since the runner was made.
struct LayerStats {
  // Layer calls whose experts were predicted, by what.
  int64_t predictions_resident_forward = 0;
  int64_t predictions_next_gate = 0;
  // Time a call could not go on, by reason, in the engine's clock.
  int64_t stall_miss_ns = 0;
  int64_t stall_queue_ns = 0;
  int64_t stall_cpu_ns = 0;
  int64_t policy_fallbacks = 0;

  int64_t stalled_ns() const { return stall_miss_ns + stall_queue_ns + stall_cpu_ns; }
};

/// Runs layer calls, one at a time. Its workspace is sized once for max_tokens rows.
class LayerRunner {
 public:
  LayerRunner(const LayerParts& parts, int64_t max_tokens);

  /// out: [tokens, hidden] fp32, contiguous; may be call.x.
  absl::Status Forward(LayerCall call, float* out);

  /// Fetches the selections of replays that have arrived; the device may then bring others.
  void TakeSelections() { selected_ = selected_ || parts_.device->TakeSelections(&selections_); }
  /// Accounts for calls on a device whose routing has arrived since, or whose selections were
  /// taken.
  void CollectLate(PolicyContext context);

  LayerStats stats() const { return stats_; }

  /// Bytes of workspace for max_tokens rows of any layer, MixedGroupGemm's own excluded;
  /// `resident_forward`: with the two matrices that it exchanges with the host.
  static int64_t WorkspaceBytes(const MoeModelSpec& model, int64_t max_tokens,
                                bool resident_forward);

 private:
  absl::Status Route(const LayerCall& call);
  void Plan(const LayerCall& call);
  absl::Status FetchAndMultiply(const LayerCall& call);
  void Combine(const LayerCall& call, float* out);

  absl::Status Multiply(const LayerCall& call, bool first);
  /// What the shared expert's output of row t is multiplied with.
  float SharedWeight(const LayerCall& call, int64_t t) const;
  /// Whether the next layer's input shall be predicted from this call's partial output.
  bool WantsForward(const LayerCall& call) const;
  /// Has the host predict it, from the experts of the first wave: new next_scores. On the host's
  /// refusal those of the next layer's gate.
  absl::Status PredictForward(const LayerCall& call, absl::Span<const int32_t> computed);
  /// Counts by what the prefetcher is about to predict.
  void CountPrediction(const LayerCall& call);
  absl::Status RouteOnDevice(const LayerCall& call, const RoutingRule& rule,
                             const LayerResidency& residency, bool next_gate);
  /// The whole call with no host in the way, where nothing can be missing. False: the call has to
  /// go the long way.
  absl::StatusOr<bool> TryResident(const LayerCall& call);
  /// Accounts for calls of TryResident whose routing has arrived.
  void CollectRoutings();
  absl::Status CollectArrived(const LayerCall& call);
  /// Puts an expert into the next wave, pinned, if it is usable.
  bool Claim(const LayerCall& call, int32_t expert);
  /// Of a cache's versions; null: always the best.
  PrecisionPolicy* Precision() const {
    return parts_.versions == nullptr ? parts_.strategy->precision.get() : nullptr;
  }
  /// Behind a call, lower versions it used are replaced, if the policy wants that.
  void Upgrade(const LayerCall& call);
  /// Waits for the CPU beside the fast tier; on the virtual clock it is done at done_ns.
  absl::Status JoinCpu(const LayerCall& call, int64_t done_ns);
  void CountStall(const LayerCall& call, int64_t begin_ns);
  /// Virtual clock: lets `ns` pass.
  void Charge(double ns);
  /// The time of multiplying `problems_` on the virtual clock.
  double WaveNs(bool first) const;
  void Span(const LayerCall& call, TimelineTrack track, absl::string_view name, int64_t begin_ns);

  const LayerParts parts_;
  LayerStats stats_;
  RoutingResult routing_;
  LayerPlan plan_;
  std::vector<int32_t> wave_;    // experts ready to be multiplied, pinned
  std::vector<int32_t> flying_;  // experts on their way
  std::vector<ExpertProblem> problems_;
  std::vector<int> problem_versions_;  // of each; -1: a shared expert
  std::vector<WaveExpert> handles_;    // of a wave on a device
  RoutingResult late_routing_;
  std::vector<SelectionCount> selections_;
  bool selected_ = false;                // there are some
  CallTimes times_;                      // of this call
  const CallTimes* recorded_ = nullptr;  // of this call when it was recorded
  double recorded_bytes_ = 0;            // of all records it multiplied then
  std::vector<int32_t> all_tokens_;
  std::vector<int32_t> shared_rows_;
  bool forward_predicted_ = false;            // next_scores come from the host's prediction
  std::vector<uint8_t> computed_;             // [E]: of the first wave
  AlignedArray<float> partial_, next_input_;  // [T, hidden]; empty unless the strategy wants them
  AlignedArray<float> slots_;  // [T * k + T, hidden]: routed outputs by slot, then shared ones
};

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_LAYER_H_
