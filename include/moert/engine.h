// Engine: the object a host holds. It owns the experts of one model under one byte budget and
// answers, layer by layer, with the output of the MoE block.
//
//   auto step = engine->Begin({Phase::kDecode, rows});
//   for (int l = 0; l < engine->model().num_layers(); ++l) step->Forward(l, hidden, out);
//   step->End();
//
// Thread-safe. Layer calls of one engine run one at a time on the CPU backend (each uses all
// threads); several steps may be open. Forward returns the error of a failed load: the step's
// output is then undefined, but the engine stays usable for what is resident and for later steps.
#ifndef MOERT_ENGINE_H_
#define MOERT_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/options.h"
#include "moert/policy.h"
#include "moert/stats.h"
#include "moert/tensor.h"

namespace moert {

class ExpertSource;
class Step;
struct CallTimes;
struct ExpertView;
struct OpaqueProduct;
enum class Residency : uint8_t;

/// The known part of a layer's output while its missing experts are still on their way.
struct PartialOutput {
  int layer = 0;           // an MoE layer, not the last
  MatrixView output = {};  // [rows, hidden] fp32: shared and present routed experts, weighted
  /// [rows, hidden of layer + 1] fp32, to be filled: that layer's input if `output` were complete.
  MutableMatrixView next_input = {};
};
/// The host's resident-forward prediction (importance paper Sec. 5.2). It adds the partial output
/// to the residual stream and runs what lies between this MoE block and the next, attention over
/// the KV cache included. It must have no lasting effect: the true pass overwrites its results
/// later. False: it cannot predict, and the next layer's gate on this layer's input does. Called on
/// the layer call's thread with the engine locked: must not call the engine.
using PredictNext = std::function<bool(const PartialOutput&)>;

/// One pass over all MoE layers (design "The step"). Spans are copied.
struct StepInfo {
  Phase phase = Phase::kPrefill;
  int64_t rows = 0;                            // tokens of every layer call of this step
  absl::Span<const int64_t> request_ids = {};  // [rows] or empty
  absl::Span<const int32_t> token_ids = {};  // [rows] or empty; RoutingSpec::hash_vocab needs them
  void* stream = nullptr;  // CUDA backend: the cudaStream_t that orders the step's calls
  /// For prefetch policies that want it; may be null. Only decode steps of the CPU backend call it:
  /// on a device the partial output would have to wait for the device.
  PredictNext predict_next = {};
};

using StepId = int64_t;   // identifies an open step; never reused within an engine
using LeaseId = int64_t;  // identifies a lease of experts; likewise

/// A host's or a trace's routing. Spans are borrowed for the call; only ids and weights are needed.
struct RoutedInput {
  /// [T, k], each in [0, E), no expert twice for a token. -1: no expert, adds nothing.
  absl::Span<const int32_t> ids = {};
  absl::Span<const float> weights = {};      // [T, k], as they enter the sum
  absl::Span<const float> scores = {};       // [T, E]; empty: policies that read them see none
  absl::Span<const float> next_scores = {};  // [T, E'] predicted for layer + 1 (0 after the last)
  absl::Span<int32_t> used_ids = {};  // [T, k], receives the ids used; lossy strategies swap some
  bool shared_experts = true;         // false: the layer's shared experts add nothing to this call
  /// CUDA backend: the memory that holds ids, weights and used_ids. kDevice: they are read on the
  /// step's stream, scores must be empty, next_scores stay in host memory. An id out of range
  /// counts as -1, unchecked. If every expert is present and the strategy does not prefetch, the
  /// call does not wait for the host, does not read next_scores, and can be captured.
  Place place = Place::kHost;
  // Virtual clock only, as recorded.
  const CallTimes* times = nullptr;  // of the call: charged in place of the profile's costs
  int64_t idle_before_ns = 0;        // between the previous call and this one
};

/// How a budget is divided: fixed costs, and the rest for experts. See Engine::Plan.
struct MemoryPlan {
  int64_t budget_bytes = 0;
  int64_t constant_bytes = 0;   // gates, shared experts
  int64_t table_bytes = 0;      // residency and bookkeeping
  int64_t workspace_bytes = 0;  // activations, sized from max_tokens_per_forward
  int64_t policy_bytes = 0;     // held by policies; with a device this is RAM outside of the budget
  int64_t pinned_bytes = 0;     // likewise: limit of pinned records (EngineOptions::host_budget)
  int64_t block_bytes = 0;      // the largest expert, in the best version served
  int64_t all_bytes = 0;        // all experts in that version. A cache's blocks are as large as
                                // their records if the backend supports it, else as the largest
  int64_t slots = 0;  // blocks for the rest, counted at the mean size, all_bytes / total_experts
  int64_t low_block_bytes = 0;  // one expert in the low version, where two are served
  int64_t low_slots = 0;
  /// Bytes of the pool in which every expert owns a block for good, as large as its record; 0:
  /// none. All experts are preloaded into it, or it has the always resident low versions.
  int64_t own_bytes = 0;
  int64_t spare = 0;  // blocks of each size kept free so that full pools can swap
  int64_t total_experts = 0;
  int64_t minimum_bytes = 0;  // smallest legal budget
  bool device = false;        // the fast tier is not RAM

  int64_t fixed_bytes() const {
    return constant_bytes + table_bytes + workspace_bytes + (device ? 0 : policy_bytes);
  }
  int64_t pool_bytes() const {
    if (own_bytes == 0) return MeanBytes(slots) + low_slots * low_block_bytes;
    return own_bytes + (low_slots > 0 ? slots * block_bytes : 0);
  }
  /// The bytes of `count` blocks of the mean size.
  int64_t MeanBytes(int64_t count) const {
    if (total_experts == 0) return 0;
    return count * (all_bytes / total_experts) +
           count * (all_bytes % total_experts) / total_experts;
  }
  /// "64.0 KiB gates and shared experts + ... = ...", for messages.
  std::string ToString() const;
};

/// A fetch for kernels of the host's. Spans are borrowed for the call; only ids are needed.
struct FetchInput {
  absl::Span<const int32_t> ids = {};  // [T, k] in [0, E), or -1: none. This call pins all of them
  absl::Span<const float> weights = {};      // [T, k], for policies that read them
  absl::Span<const float> scores = {};       // [T, E], likewise
  absl::Span<const float> next_scores = {};  // [T, E'] predicted for layer + 1 (0 after the last)
  /// [rows, hidden], the layer's input in the backend's memory, or empty. Without next_scores, the
  /// source's gate of the next layer, if any, is scored on it for policies that predict by it.
  MatrixView hidden = {};
  absl::Span<int32_t> slot_ids = {};  // [T, k], receives the slot of each id
  /// As RoutedInput::place, for ids, weights and slot_ids, which are written on the step's stream.
  /// kDevice: k is the layer's top_k, and the slot of an id out of range is -1. If every expert is
  /// present and the strategy does not prefetch, all of the layer's experts are pinned. The device
  /// also loads missing experts, without a wait, if the strategy is on-demand or fate and the layer
  /// has a slot for every id. Besides, a host_budget must keep every record of opaque experts in
  /// pinned memory, or the call must have cpu_rows. One token always finds its slots if
  /// MemoryPlan::slots is at least the sum of min(top_k, E) over all layers and no lease pins an
  /// expert. Other calls that find fewer slots than ids wait for the device
  /// (EngineStats::host_syncs). fate prefetches for one token whose hidden is given. A fetch that
  /// the device serves leaves SlotView::slot_of_expert at -1. It must be released before the next
  /// fetch of its layer and before calls that need slots on the host: FailedPrecondition.
  Place place = Place::kHost;
  /// With ids on the device: [rows, hidden], the experts' input in device memory, or empty. If the
  /// strategy shares misses with the CPU, the CPU may compute some (token, expert) pairs by
  /// OpaqueWeights::product from pinned memory, and TakeCpuRows must follow. Such a call of up to
  /// 32 rows does not need a slot for every id: the CPU computes the pairs without one. Empty:
  /// every miss is loaded, and the call waits on the host unless pinned memory holds every record.
  MatrixView cpu_rows = {};
  /// For kernels that compute every pair: for pairs that the CPU computes, slot_ids receive in
  /// place of -1 a readable slot that no other pair of the token has.
  bool any_slot = false;
};

/// Addresses of a layer's experts: part p of slot s begins at parts[p].base + s * parts[p].stride.
struct SlotView {
  struct Part {
    const std::byte* base = nullptr;  // host or device memory, as the backend has it
    int64_t stride = 0;               // bytes from slot to slot
    int64_t bytes = 0;                // of one expert; 0: experts of the layer differ
  };
  std::vector<Part> parts = {};  // an opaque record's; else one, the record (ExpertSource::layout)
  int64_t slots = 0;             // slot numbers are below this
  /// [E]: the slot of each expert of this call, -1 for others; for a shard, indexed by its own
  /// experts in their order. Valid until the experts are released.
  absl::Span<const int32_t> slot_of_expert = {};
  /// CUDA backend, else null: the same for every resident expert of the layer, in device memory,
  /// written on the step's stream; -1: absent or arriving. Slots of this call's experts are valid
  /// until released, others until the next call of any step, the pointer for the engine's life.
  const int32_t* device_slot_of_expert = nullptr;
};

/// Whether a host may capture layer calls into CUDA graphs, and what it must do between replays. A
/// captured Fetch needs a step of the same calls before it, outside of the capture; within the
/// capture it is released after the host's products. Each BeginStep then provides the slots that
/// replays need. If it cannot, because leases or unreleased fetches hold slots or another budget
/// moved them, it fails with FailedPrecondition once, and the graphs are void: capture again.
/// Between BeginStep and the replay the host makes no other call of the step.
struct GraphNeeds {
  /// Layer calls (Forward, of up to max_rows rows) may be captured. Graphs are launched between
  /// BeginStep and EndStep of later steps, on the step's stream, while residency changes; the
  /// engine does not wait for one launched elsewhere. True if every expert always has a usable
  /// version, or the device loads missing ones, and no policy must see a routing before execution.
  bool capturable = false;
  /// The reason if not capturable, such as the CPU backend or records outside of pinned memory
  /// (host_budget). Layer calls under capture then fail with FailedPrecondition and this reason.
  std::string obstacle = {};
  /// One step in this many must run eagerly, between replays: the strategy evicts by scores, which
  /// replays do not record. 0: none must.
  int eager_every = 0;
  /// Most rows of a captured call; 0: any number. Where pinned memory does not hold every record
  /// (EngineOptions::host_budget), captured calls need the CPU, which takes part in no larger call.
  int64_t max_rows = 0;
};

class Engine {
 public:
  /// Reads the constants, reserves the pools and, for preloading strategies, loads every expert.
  /// Refuses a budget below the minimum with the arithmetic in the message.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(std::shared_ptr<const ExpertSource> source,
                                                        const EngineOptions& options);
  /// The memory a given source and options would take; allocates nothing.
  static absl::StatusOr<MemoryPlan> Plan(const ExpertSource& source, const EngineOptions& options);

  virtual ~Engine() = default;

  /// Opens a step that ends itself. The engine must outlive it.
  absl::StatusOr<Step> Begin(const StepInfo& info);
  /// The same by identifier, for bindings and hosts that pass steps around: open until EndStep.
  virtual absl::StatusOr<StepId> BeginStep(const StepInfo& info) = 0;
  /// hidden, out: [rows, hidden] of MoE layer `layer` (0-based over MoE layers). out may alias
  /// hidden. It gets the block's output: routed plus shared experts, before the residual addition;
  /// of a shard its part of the sum. Blocks until done on the CPU backend.
  virtual absl::Status Forward(StepId step, int layer, const MatrixView& hidden,
                               const MutableMatrixView& out) = 0;
  /// The same with a given routing. Under EngineOptions::simulate, hidden and out are not used.
  virtual absl::Status ForwardRouted(StepId step, int layer, const MatrixView& hidden,
                                     const RoutedInput& routing, const MutableMatrixView& out) = 0;
  virtual absl::Status EndStep(StepId step) = 0;
  virtual absl::Status StepStatus(StepId step) = 0;  // the first error of an open step, or OK
  /// Makes the layer call in progress return Cancelled once the loads it has begun have arrived,
  /// and every later call at once. The step still has to be ended. Never blocks.
  virtual absl::Status CancelStep(StepId step) = 0;

  /// Loads and pins experts that host kernels read in place. They take slots from layer calls:
  /// ResourceExhausted if they do not fit. Lease and `views` end by ReleaseExperts or EndStep.
  virtual absl::StatusOr<LeaseId> AcquireExperts(StepId step, int layer,
                                                 absl::Span<const int32_t> experts,
                                                 std::vector<ExpertView>* views) = 0;
  /// Calls `use`, which must not call the engine, with the views of a lease and returns its result.
  /// A call that would end the lease waits. FailedPrecondition if the lease has ended.
  virtual absl::Status UseLease(
      LeaseId lease, absl::FunctionRef<absl::Status(absl::Span<const ExpertView>)> use) const = 0;
  virtual absl::Status ReleaseExperts(LeaseId lease) = 0;  // FailedPrecondition likewise

  /// A layer call whose matrix products the host computes: loads the experts that `input` names and
  /// pins them until ReleaseFetched or the step's end. Policies see it like a Forward. Blocks until
  /// all experts are there; on CUDA, kernels that the host enqueues on the step's stream until
  /// ReleaseFetched may read them. ResourceExhausted, with nothing pinned and the number that fits
  /// in the message, if the layer cannot hold all at once: fetch them in several calls, each
  /// released before the next. FailedPrecondition if slots have no constant stride: a host's
  /// allocator, experts of one layer in different sizes, or a strategy of several versions.
  virtual absl::Status Fetch(StepId step, int layer, const FetchInput& input, SlotView* view) = 0;
  /// Writes the rows, if any, that the CPU computed for a Fetch with cpu_rows to `rows`, [T * k,
  /// hidden] fp32 on the device, each at its pair's place. Call it once for each such Fetch, after
  /// the host's own products and before its sum over experts. Enqueued on the step's stream, which
  /// waits for the CPU two seconds at most, ten if records are read for it; the host does not wait.
  /// If the CPU fails or is late, rows are NaN, and a later call of the step returns the error.
  virtual absl::Status TakeCpuRows(StepId step, int layer, const MutableMatrixView& rows) = 0;
  /// Releases every Fetch of this layer in this step; OK if there is none. Never waits for
  /// transfers. FailedPrecondition if a TakeCpuRows is missing.
  virtual absl::Status ReleaseFetched(StepId step, int layer) = 0;
  /// Copies opaque records of experts (all of the layer's if `experts` is empty) from slots or host
  /// memory to `to`, expert e to slot e of *view. For calls that use most experts. Slots keep their
  /// experts; no policy sees the call. `to` is the host's memory where the backend computes,
  /// view->slots times a part's stride in bytes (alike for all). Null: only *view is filled, with
  /// offsets for addresses. On CUDA copies are enqueued on the step's stream. The call waits only
  /// for what the device served before and reads of records in neither place
  /// (EngineOptions::host_budget). FailedPrecondition if a capture needs such reads, or a fetch
  /// that the device served is not released; Unimplemented for other records, shards and strategies
  /// of several versions.
  virtual absl::Status CopyLayer(StepId step, int layer, absl::Span<const int32_t> experts,
                                 std::byte* to, SlotView* view) = 0;
  /// Runs the source's OpaqueWeights::product over chosen experts, such as those that would arrive
  /// too late, on the caller's thread and the library's. Records are read in place in RAM, or
  /// loaded for the call. The engine sets layer, parts and pool of `product`, and weights if there
  /// are none. Blocks until out is written. Slots keep their experts; no policy sees the call.
  /// FailedPrecondition if there is no product; Unimplemented for shards.
  virtual absl::Status MultiplyOnCpu(StepId step, int layer, const OpaqueProduct& product) = 0;

  /// A hint that these experts of a layer, best first, will be needed: they are loaded while the
  /// link has nothing more urgent. Never blocks; hints during a layer call wait for the next one.
  virtual absl::Status PrefetchHint(int layer, absl::Span<const int32_t> experts) = 0;
  /// One value per expert of the layer. A snapshot: waits for a layer call in progress, and for
  /// replays of graphs whose misses the device serves.
  virtual absl::StatusOr<std::vector<Residency>> ResidencyOf(int layer) = 0;

  /// Changes the budget, ahead of calls that wait; one below the minimum is refused, with nothing
  /// changed. Evicts to fit before it returns, except where experts are resident in versions: open
  /// steps keep theirs. A lower budget is then reached as they end and others begin, and the old
  /// one is in force until then (EngineStats::budget_bytes).
  virtual absl::Status SetBudget(const Budget& budget) = 0;

  virtual EngineStats stats() const = 0;
  virtual MemoryPlan memory() const = 0;
  virtual int64_t now_ns() const = 0;  // wall time, or logical time under ClockKind::kVirtual
  virtual const MoeModelSpec& model() const = 0;
  virtual const std::string& strategy() const = 0;
  virtual BackendKind backend() const = 0;  // where experts execute: never kAuto
  virtual Promise promise() const = 0;      // of the strategy that runs, after `auto` was resolved
  /// The same bits at any budget. False: output may depend on residency.
  bool exact() const { return promise() == Promise::kExact; }
  virtual const GraphNeeds& graph_needs() const = 0;  // constant over an engine's life
};

/// An open step. Methods do what the engine's of the same name do; FailedPrecondition after End.
/// One thread at a time; another one cancels with engine->CancelStep(step.id()).
class Step {
 public:
  Step(Step&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)), id_(other.id_) {}
  Step& operator=(Step&& other) noexcept;
  ~Step();  // ends the step if End was not called; its error is lost then

  absl::Status Forward(int layer, const MatrixView& hidden, const MutableMatrixView& out);
  absl::Status ForwardRouted(int layer, const MatrixView& hidden, const RoutedInput& routing,
                             const MutableMatrixView& out);
  absl::StatusOr<LeaseId> AcquireExperts(int layer, absl::Span<const int32_t> experts,
                                         std::vector<ExpertView>* views);
  absl::Status Fetch(int layer, const FetchInput& input, SlotView* view);
  absl::Status TakeCpuRows(int layer, const MutableMatrixView& rows);
  absl::Status ReleaseFetched(int layer);
  absl::Status CopyLayer(int layer, absl::Span<const int32_t> experts, std::byte* to,
                         SlotView* view);
  absl::Status MultiplyOnCpu(int layer, const OpaqueProduct& product);
  absl::Status status() const;  // Engine::StepStatus
  absl::Status Cancel();
  absl::Status End();
  StepId id() const { return id_; }  // for Engine's methods that take an identifier

 private:
  friend class Engine;
  Step(Engine* engine, StepId id) : engine_(engine), id_(id) {}

  Engine* engine_;  // null: ended or moved from
  StepId id_;
};

}  // namespace moert

#endif  // MOERT_ENGINE_H_
