// Engine: the object a host holds. It owns the experts of one model under one byte budget and
// answers, layer by layer, with the output of the MoE block.
//
//   auto step = engine->Begin({Phase::kDecode, rows});
//   for (int l = 0; l < engine->model().num_layers(); ++l) step->Forward(l, hidden, out);
//   step->End();
//
// Thread-safety: every method may be called from any thread. Layer calls of one engine run one at a
// time on the CPU backend (each uses all threads); several steps may be open.
// Errors: a failed load makes Forward return the error; the output of that step is then undefined
// and the engine stays usable for what is resident and for later steps.
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
  int layer = 0;  // an MoE layer, not the last
  /// [rows, hidden] fp32: the shared experts and those routed ones that were present, weighted.
  MatrixView output = {};
  /// [rows, hidden of MoE layer + 1] fp32, to be filled: the input that layer would get if `output`
  /// were the whole output.
  MutableMatrixView next_input = {};
};
/// The host's callback for resident-forward prediction (importance paper Sec. 5.2): adds the
/// partial output to the residual stream and runs what lies between this MoE block and the next
/// one, attention over the KV cache included. It must have no lasting effect: the true pass runs
/// later and overwrites its results. Returns false if it cannot predict; the next layer's gate on
/// this layer's input predicts then. Called on the thread of the layer call with the engine locked:
/// must not call the engine.
using PredictNext = std::function<bool(const PartialOutput&)>;

/// One pass over all MoE layers (design "The step"). Spans are copied.
struct StepInfo {
  Phase phase = Phase::kPrefill;
  int64_t rows = 0;                            // tokens of every layer call of this step
  absl::Span<const int64_t> request_ids = {};  // [rows] or empty
  absl::Span<const int32_t> token_ids = {};  // [rows] or empty; RoutingSpec::hash_vocab needs them
  void* stream = nullptr;  // CUDA backend: the cudaStream_t that orders the step's calls
  /// Offers resident-forward prediction to prefetch policies that want it. Only decode steps of the
  /// CPU backend call it: on a device the partial output would have to wait for the device. May be
  /// null.
  PredictNext predict_next = {};
};

/// Identifies an open step; never reused within an engine.
using StepId = int64_t;
/// Identifies a lease of experts; never reused within an engine.
using LeaseId = int64_t;

/// A routing that the host computed, or a trace recorded. Spans are borrowed for the call.
struct RoutedInput {
  /// [T, k], each in [0, E), no expert twice for a token. -1: the slot has no expert here and adds
  /// nothing.
  absl::Span<const int32_t> ids = {};
  absl::Span<const float> weights = {};  // [T, k], as they enter the sum
  absl::Span<const float> scores = {};   // [T, E] over all experts, or empty: then policies that
                                         // read scores see none
  absl::Span<const float> next_scores = {};  // [T, E'] predicted for layer + 1 (0 after the last),
                                             // or empty
  /// [T, k] or empty: receives the experts that were used. A lossy strategy may replace some.
  absl::Span<int32_t> used_ids = {};
  /// False: the layer's shared experts add nothing to this call.
  bool shared_experts = true;
  /// CUDA backend: the memory that holds ids, weights and used_ids. kDevice: they are read on the
  /// step's stream, scores must be empty (next_scores stay in host memory), and ids are not
  /// checked: an id out of range counts as -1. If every expert is present and the strategy does not
  /// prefetch, the call does not wait for the host and can be captured; next_scores are not read
  /// then.
  Place place = Place::kHost;
  /// Virtual clock only: the recorded times of the call, charged in place of the profile's costs,
  /// and the recorded time between the previous call and this one.
  const CallTimes* times = nullptr;
  int64_t idle_before_ns = 0;
};

/// How a budget is divided: fixed costs, and the rest for experts. See Engine::Plan.
struct MemoryPlan {
  int64_t budget_bytes = 0;
  int64_t constant_bytes = 0;   // gates, shared experts
  int64_t table_bytes = 0;      // residency and bookkeeping
  int64_t workspace_bytes = 0;  // activations, sized from max_tokens_per_forward
  int64_t policy_bytes = 0;     // held by policies; with a device this is RAM outside of the budget
  int64_t pinned_bytes = 0;     // with a device: limit of the pinned RAM that keeps records,
                                // outside of the budget (EngineOptions::host_budget)
  int64_t block_bytes = 0;      // the largest expert, in the best version served
  int64_t all_bytes = 0;        // all experts in that version. A cache's blocks are as large as
                                // their records where the backend supports it, else as large as the
                                // largest
  int64_t slots = 0;  // blocks for the rest, counted at the mean size, all_bytes / total_experts
  int64_t low_block_bytes = 0;  // one expert in the low version, where two are served
  int64_t low_slots = 0;
  /// Bytes of the pool in which every expert owns a block for good (all experts preloaded, or the
  /// low version that is always resident), each block as large as its record. 0: no such pool.
  int64_t own_bytes = 0;
  int64_t spare = 0;  // blocks of each size kept free so that full pools can swap
  int64_t total_experts = 0;
  int64_t minimum_bytes = 0;  // smallest legal budget

  bool device = false;  // the fast tier is not RAM

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

/// The request of a host with kernels of its own. Spans are borrowed for the call.
struct FetchInput {
  absl::Span<const int32_t> ids = {};  // [T, k] in [0, E), or -1: none. This call pins all of them
  absl::Span<const float> weights = {};      // [T, k] or empty: for policies that read them
  absl::Span<const float> scores = {};       // [T, E] or empty, likewise
  absl::Span<const float> next_scores = {};  // [T, E'] predicted for layer + 1 (0 after the last),
                                             // or empty
  /// [rows, hidden], the layer's input in the backend's memory, or empty. If the source has gates
  /// and next_scores are not given, the next layer's gate is scored on it for policies that predict
  /// by it.
  MatrixView hidden = {};
  absl::Span<int32_t> slot_ids = {};  // [T, k] or empty: receives the slot of each id
  /// CUDA backend: the memory that holds ids, weights and slot_ids. kDevice: they are read and
  /// written on the step's stream, k is the layer's top_k, scores must be empty (next_scores stay
  /// in host memory), and ids are not checked: the slot of an id out of range is -1. If every
  /// expert is present and the strategy does not prefetch, the call does not wait for the host, all
  /// of the layer's experts are pinned, and the call can be captured; next_scores are not read
  /// then.
  /// The device also loads missing experts, without a wait, if the strategy is on-demand or fate, a
  /// host_budget keeps every record of opaque experts in pinned memory (or the call has cpu_rows),
  /// and the layer has a slot for every id. One token always finds its slots if MemoryPlan::slots
  /// is at least the sum of min(top_k, E) over all layers and no lease pins an expert. Other calls
  /// that find fewer slots than ids wait for the device (EngineStats::host_syncs). fate prefetches
  /// for one token whose hidden is given. Such a fetch leaves SlotView::slot_of_expert at -1 and
  /// must be released before the next fetch of its layer and before any other call to the engine:
  /// FailedPrecondition.
  Place place = Place::kHost;
  /// With ids on the device: [rows, hidden], the experts' input in device memory, or empty. If the
  /// strategy shares misses with the CPU, the CPU may compute some (token, expert) pairs by
  /// OpaqueWeights::product from pinned memory, and TakeCpuRows must follow. Such a call of up to
  /// 32 rows does not need a slot for every id: the CPU computes the pairs without one. Empty:
  /// every miss is loaded, and the call waits on the host if pinned memory does not hold every
  /// record.
  MatrixView cpu_rows = {};
  /// Whether slot_ids receive a readable slot in place of -1 for pairs that the CPU computes, one
  /// that no other pair of the token has: for kernels that compute every pair.
  bool any_slot = false;
};

/// The addresses of a layer's experts: part p of the expert in slot s begins at parts[p].base + s *
/// parts[p].stride.
struct SlotView {
  struct Part {
    const std::byte* base = nullptr;  // host or device memory, as the backend has it
    int64_t stride = 0;               // bytes from slot to slot
    int64_t bytes = 0;                // of one expert; 0: experts of the layer differ
  };
  /// An opaque record's parts; else one entry, the whole record (ExpertSource::layout).
  std::vector<Part> parts = {};
  int64_t slots = 0;  // slot numbers are below this
  /// [E]: the slot of each expert of this call, -1 for others; for a shard, indexed by its own
  /// experts in their order. Valid until the experts are released.
  absl::Span<const int32_t> slot_of_expert = {};
  /// CUDA backend: the same table in device memory, written on the step's stream; else null. It has
  /// every resident expert of the layer, -1 for one that is absent or still arriving. Slots of this
  /// call's experts stay valid until they are released, those of others until the next call of any
  /// step. The pointer is valid for the engine's life.
  const int32_t* device_slot_of_expert = nullptr;
};

/// Whether and how a host may capture layer calls into CUDA graphs (Engine::graph_needs).
///
/// A captured Fetch needs a step of the same calls before it, outside of the capture; within the
/// capture it is released after the host's products. Each BeginStep then provides the slots that
/// replays need. If it cannot, because leases or unreleased fetches hold slots or another budget
/// moved them, it fails with FailedPrecondition once, and the graphs are void: capture again.
/// Between BeginStep and the replay the host makes no other call of the step.
struct GraphNeeds {
  /// Layer calls (Forward, of up to max_rows rows) may be recorded into a CUDA graph, and the graph
  /// launched between BeginStep and EndStep of later steps, on the step's stream, while residency
  /// changes underneath. The engine does not wait for a graph that is launched elsewhere. True if
  /// every expert always has a usable version, or the device loads missing ones itself, and no
  /// policy has to see a routing before it is executed.
  bool capturable = false;
  /// The reason if not capturable, such as records that pinned memory does not hold (host_budget);
  /// the CPU backend never is capturable. Layer calls on a stream that is being captured then fail
  /// with FailedPrecondition and this reason.
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

  // The same by identifier, for bindings and for hosts that pass steps around. Such a step stays
  // open until EndStep.

  virtual absl::StatusOr<StepId> BeginStep(const StepInfo& info) = 0;

  /// hidden, out: [rows, hidden] of MoE layer `layer` (0-based over MoE layers). out gets the
  /// block's output (routed plus shared experts, before the residual addition; of a shard its part
  /// of the sum); it may alias hidden. Blocks until done on the CPU backend.
  virtual absl::Status Forward(StepId step, int layer, const MatrixView& hidden,
                               const MutableMatrixView& out) = 0;

  /// The same with the routing given, for hosts that route themselves and for replay. Under
  /// EngineOptions::simulate, hidden and out are not looked at.
  virtual absl::Status ForwardRouted(StepId step, int layer, const MatrixView& hidden,
                                     const RoutedInput& routing, const MutableMatrixView& out) = 0;

  virtual absl::Status EndStep(StepId step) = 0;
  /// The first error of an open step, or OK.
  virtual absl::Status StepStatus(StepId step) = 0;
  /// Makes the layer call in progress return Cancelled once the loads it has begun have arrived,
  /// and every later call at once. The step still has to be ended. Never blocks.
  virtual absl::Status CancelStep(StepId step) = 0;

  /// Loads the experts, pins them and stores their addresses in `views`: for hosts whose own
  /// kernels read weights in place. Pinned experts take slots from layer calls: ResourceExhausted
  /// when they do not fit. A lease ends with ReleaseExperts or with its step; `views` dangle then.
  virtual absl::StatusOr<LeaseId> AcquireExperts(StepId step, int layer,
                                                 absl::Span<const int32_t> experts,
                                                 std::vector<ExpertView>* views) = 0;
  /// Calls `use` with the views of a lease and returns its result. A call that would end the lease
  /// meanwhile waits. FailedPrecondition if the lease has ended. `use` must not call the engine.
  virtual absl::Status UseLease(
      LeaseId lease, absl::FunctionRef<absl::Status(absl::Span<const ExpertView>)> use) const = 0;
  /// FailedPrecondition if the lease has ended.
  virtual absl::Status ReleaseExperts(LeaseId lease) = 0;

  /// A layer call whose matrix products the host computes: loads the experts that `input` names and
  /// pins them until ReleaseFetched or the step's end. Policies see it like a Forward. Blocks until
  /// all experts are there; on CUDA, kernels that the host enqueues on the step's stream between
  /// Fetch and ReleaseFetched may read them. ResourceExhausted, with nothing pinned and the number
  /// that fits in the message, if the call names more experts than the layer can hold at once:
  /// fetch them in several calls, each released before the next. FailedPrecondition if slots have
  /// no constant stride: a host's allocator, experts of one layer in different sizes, or a strategy
  /// that serves several versions.
  virtual absl::Status Fetch(StepId step, int layer, const FetchInput& input, SlotView* view) = 0;
  /// Writes the rows that the CPU computed for a Fetch with cpu_rows into `rows`, [T * k, hidden]
  /// fp32 on the device, each at its pair's place. Call it once for each such Fetch, after the
  /// host's own products and before its sum over experts. Enqueued on the step's stream, which
  /// waits for the CPU for two seconds at most, ten if records are read for it; the host does not
  /// wait. Writes nothing if the CPU has no pairs. Rows are NaN if the CPU's product failed or was
  /// late, and a later call of the step returns the error.
  virtual absl::Status TakeCpuRows(StepId step, int layer, const MutableMatrixView& rows) = 0;
  /// Releases every Fetch of this layer in this step; OK if there is none. Never waits for
  /// transfers. FailedPrecondition if a TakeCpuRows is missing.
  virtual absl::Status ReleaseFetched(StepId step, int layer) = 0;
  /// Copies opaque records of a layer's experts (all of them if `experts` is empty) from slots or
  /// host memory to `to`, expert e to slot e of *view: for calls of so many rows that most experts
  /// are used. Slots keep their experts, and no policy sees the call. `to` is the host's memory
  /// where the backend computes, view->slots times the stride of a part in bytes; null: only *view
  /// is filled, with offsets in place of addresses. On CUDA copies are enqueued on the step's
  /// stream. The call waits only for what the device served before, and for reads of records that
  /// are in neither place (EngineOptions::host_budget). FailedPrecondition if a capture would need
  /// such reads, or a fetch that the device served is not released. Unimplemented for other
  /// records, shards and strategies of several versions.
  virtual absl::Status CopyLayer(StepId step, int layer, absl::Span<const int32_t> experts,
                                 std::byte* to, SlotView* view) = 0;
  /// Runs the source's product (OpaqueWeights::product) over experts that the host has chosen, such
  /// as those of a long batch that the link would bring too late, on the caller's thread and the
  /// library's. Records are read in place in RAM, or loaded for the call. The host sets the experts
  /// with their pairs, rows, x, row_of and out of `product`; the engine sets the rest. Blocks until
  /// out is written. Slots keep their experts, and no policy sees the call. FailedPrecondition if
  /// the source has no product. Unimplemented for shards.
  virtual absl::Status MultiplyOnCpu(StepId step, int layer, const OpaqueProduct& product) = 0;

  /// A hint that these experts of a layer, best first, will be needed: they are loaded while the
  /// link has nothing more urgent. Never blocks; hints given during a layer call wait for the next
  /// one.
  virtual absl::Status PrefetchHint(int layer, absl::Span<const int32_t> experts) = 0;
  /// One value per expert of the layer. A snapshot: waits for a layer call in progress, and for
  /// replays of graphs whose misses the device serves.
  virtual absl::StatusOr<std::vector<Residency>> ResidencyOf(int layer) = 0;

  /// Changes the budget at run time, ahead of calls that wait. Shrinking evicts to fit before it
  /// returns. Exception: where experts are resident in versions, open steps keep theirs, and a
  /// lower budget is reached as they end and others begin; until then the old one is in force
  /// (EngineStats::budget_bytes). A budget below the minimum is refused, with nothing changed.
  virtual absl::Status SetBudget(const Budget& budget) = 0;

  virtual EngineStats stats() const = 0;
  virtual MemoryPlan memory() const = 0;
  /// The engine's clock: wall time, or logical time under ClockKind::kVirtual.
  virtual int64_t now_ns() const = 0;

  virtual const MoeModelSpec& model() const = 0;
  virtual const std::string& strategy() const = 0;
  /// Where experts execute: never kAuto.
  virtual BackendKind backend() const = 0;
  /// The promise of the strategy that runs, after `auto` was resolved.
  virtual Promise promise() const = 0;
  /// The same bits at any budget. False: output may depend on residency.
  bool exact() const { return promise() == Promise::kExact; }
  /// Whether the host may record layer calls into CUDA graphs, and what it must do between replays.
  /// Constant over an engine's life.
  virtual const GraphNeeds& graph_needs() const = 0;
};

/// An open step of an engine. Each method does what the engine's method of the same name does.
/// Thread-safety: one thread at a time. Another thread cancels with engine->CancelStep(step.id()).
class Step {
 public:
  Step(Step&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)), id_(other.id_) {}
  Step& operator=(Step&& other) noexcept;
  /// Ends the step if End was not called; its error is lost then.
  ~Step();

  absl::Status Forward(int layer, const MatrixView& hidden, const MutableMatrixView& out);
  absl::Status ForwardRouted(int layer, const MatrixView& hidden, const RoutedInput& routing,
                             const MutableMatrixView& out);
  /// The lease ends with the step at the latest.
  absl::StatusOr<LeaseId> AcquireExperts(int layer, absl::Span<const int32_t> experts,
                                         std::vector<ExpertView>* views);
  absl::Status Fetch(int layer, const FetchInput& input, SlotView* view);
  absl::Status TakeCpuRows(int layer, const MutableMatrixView& rows);
  absl::Status ReleaseFetched(int layer);
  absl::Status CopyLayer(int layer, absl::Span<const int32_t> experts, std::byte* to,
                         SlotView* view);
  absl::Status MultiplyOnCpu(int layer, const OpaqueProduct& product);
  /// The first error of the step, or OK.
  absl::Status status() const;
  absl::Status Cancel();
  /// FailedPrecondition if the step has already ended, like the methods above.
  absl::Status End();

  /// For Engine's methods that take an identifier.
  StepId id() const { return id_; }

 private:
  friend class Engine;
  Step(Engine* engine, StepId id) : engine_(engine), id_(id) {}

  Engine* engine_;  // null: ended or moved from
  StepId id_;
};

}  // namespace moert

#endif  // MOERT_ENGINE_H_
