// Executor: the arithmetic of layer calls, on one backend. The engine runs one loop over it,
// route -> predict -> plan -> fetch -> multiply -> combine, and does not know which one it has.
#ifndef MOERT_LIB_EXEC_EXECUTOR_H_
#define MOERT_LIB_EXEC_EXECUTOR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "moert/model.h"
#include "moert/policy.h"
#include "moert/router.h"
#include "moert/tensor.h"
#include "rules/cpu_share.h"
#include "store/versioned_store.h"

namespace moert {

/// One layer call. The matrices lie where the backend computes.
struct ExecutorCall {
  int layer = 0;
  int64_t epoch = 0;  // of the step, see VersionedStore::OpenStep
  int64_t tokens = 0;
  MatrixView hidden;  // [tokens, hidden]
  MutableMatrixView out;
  void* stream = nullptr;               // orders the call on a device
  absl::Span<const int32_t> token_ids;  // [tokens], or empty: not told
  bool capturing = false;               // Executor::Capturing of the stream
};

/// A step's rows: [rows] each, or empty.
struct StepRows {
  absl::Span<const int64_t> request_ids;
  absl::Span<const int32_t> token_ids;
};

/// The basis of a routing made by the executor.
struct RoutingRequest {
  RoutingRule rule;          // kTopK: the model's own choice
  LayerResidency residency;  // of the layer
  const VersionedStore* store = nullptr;
  absl::Span<const int64_t> request_ids;  // [tokens], or empty: all rows are one request
  bool next_gate = false;                 // also score the next layer on the same input
};

/// A routing that the host left in device memory: [tokens, top_k].
struct GivenRouting {
  const int32_t* ids = nullptr;
  const float* weights = nullptr;  // of Engine::Fetch: or null
  int32_t* used_ids = nullptr;     // or null; of Engine::Fetch: slots
  int64_t pairs = 0;
  MatrixView cpu_rows = {};  // FetchInput's
  bool any_slot = false;
};

/// An expert that is ready to be multiplied.
struct ReadyExpert {
  int32_t expert = 0;
  ExpertHandle handle;
};

/// Resident-forward prediction: what is exchanged with the host. Both fp32 [tokens, hidden].
struct PartialRows {
  MatrixView output;             // of this layer, as far as it was multiplied
  MutableMatrixView next_input;  // of the next layer, to be filled
};

/// How often an expert was selected by calls that left no routing.
struct SelectionCount {
  int64_t slots = 0;
  int64_t calls = 0;
  double mass = 0;  // summed routing weight
};

/// Counts of an executor since it was made.
struct ExecutorStats {
  int64_t host_syncs = 0;  // times a layer call waited for the device
  bool graph_captured = false;
  // The largest substituted shares of slots and of mass that any request reached on the device, and
  // the largest share of mass that was answered low there.
  double worst_slot_share = 0;
  double worst_mass_share = 0;
  double worst_low_share = 0;
};

/// Under the engine's lock, one call at a time: Check, Route or SetRouting, Multiply once or more,
/// Combine. Multiply gives an expert the same result in whichever Multiply of a call it is.
///
/// A backend that computes on the caller's thread implements the first group. The other groups are
/// capabilities; what a backend does not override it does not have.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual ExecutorStats stats() const { return {}; }

  // Every executor.

  /// Refuses a call whose matrices do not fit the layer, before anything has changed. `routed`: the
  /// routing is given.
  virtual absl::Status Check(const ExecutorCall& call, const MoeLayerSpec& layer,
                             bool routed) const;
  /// Refuses rows that are not [call.tokens, hidden of the layer] of a float type. `what` is for
  /// the message.
  static absl::Status CheckRows(absl::string_view what, const MatrixView& rows,
                                const ExecutorCall& call, const MoeLayerSpec& layer);
  /// Scores, chosen experts and their weights, tokens grouped by expert: *routing is complete when
  /// it returns.
  virtual absl::Status Route(const ExecutorCall& call, const RoutingRequest& request,
                             RoutingResult* routing) = 0;
  /// In place of Route: the routing is given, tokens grouped.
  virtual absl::Status SetRouting(const ExecutorCall& call, const RoutingResult& routing) = 0;
  /// Computes or enqueues the products of `experts`, and those of the shared expert if this is the
  /// `first` Multiply of the call. The records may be unpinned when it returns: a block is not
  /// overwritten before this work is done.
  virtual absl::Status Multiply(const ExecutorCall& call, const RoutingResult& routing,
                                absl::Span<const ReadyExpert> experts, bool first) = 0;
  /// call.out = weighted sum of the products, in the order of k, then the shared expert.
  virtual absl::Status Combine(const ExecutorCall& call, const RoutingResult& routing) = 0;

  // A CPU that multiplies beside the fast tier.

  virtual bool has_cpu_offload() const { return false; }
  /// Whether the CPU can multiply an expert of a call of `tokens` rows, in the best version served.
  virtual bool CpuCanCompute(ExpertKey key, int64_t tokens) const { return false; }
  /// Begins multiplying such experts, beside everything else. Behind Route or SetRouting; needs a
  /// JoinCpu, whatever happens in between.
  virtual absl::Status BeginCpu(const ExecutorCall& call, const RoutingResult& routing,
                                absl::Span<const int32_t> experts) {
    return NotSupported();
  }
  /// Waits for the CPU and hands its outputs to Combine. *took_ns: what the multiplication took; 0:
  /// not measured.
  virtual absl::Status JoinCpu(const ExecutorCall& call, int64_t* took_ns) {
    return NotSupported();
  }

  // Calls whose product is the host's (Engine::Fetch).

  /// In place of SetRouting where nothing is multiplied here; call.hidden may be empty.
  virtual absl::Status SetFetched(const ExecutorCall& call, const RoutingResult& routing) {
    return SetRouting(call, routing);
  }
  /// On a device: brings its table of the layer's slots up to date and looks up what was given
  /// there, if anything was, on the call's stream. `late`: nobody has seen this routing,
  /// TakeRouting brings it. The table, [E] in device memory; null: there is no device.
  virtual absl::StatusOr<const int32_t*> PlaceSlots(const ExecutorCall& call,
                                                    const GivenRouting& given,
                                                    const PolicyContext* late,
                                                    const VersionedStore& store) {
    return nullptr;
  }
  /// Before experts are unpinned that the host's kernels may read: no block is overwritten before
  /// what `stream` was given so far is done.
  virtual absl::Status LeaveSlots(void* stream) { return absl::OkStatus(); }

  /// OK: FetchServed may be asked, by the rules that the executor was made for (ServedRules).
  /// FailedPrecondition: why not. Asked once, before the first call. May read records.
  virtual absl::Status ServeFetches(const VersionedStore& store) {
    return absl::FailedPreconditionError("this backend asks the host about misses");
  }
  /// In place of PlaceSlots, for a store of one version, by the rule of its residency policy
  /// (Strategy::misses_by_rule): the device looks up what was given there and brings what is
  /// missing, in the blocks that the store lends. Nothing waits. The layer's table; null: not
  /// possible now, nothing was done.
  virtual absl::StatusOr<const int32_t*> FetchServed(const ExecutorCall& call,
                                                     const GivenRouting& given,
                                                     VersionedStore* store) {
    return nullptr;
  }
  /// Engine::TakeCpuRows; and whether one of the layer is owed. TakeCpuFailure: the first error of
  /// the CPU's products since it was last asked.
  virtual absl::Status TakeCpuRows(const ExecutorCall& call, const MutableMatrixView& rows) {
    return absl::OkStatus();
  }
  virtual bool owes_cpu_rows(int layer) const { return false; }
  virtual absl::Status TakeCpuFailure() { return absl::OkStatus(); }
  /// Slots that a layer has for that while blocks are lent; FetchServed needs one for every id.
  virtual int64_t lent_slots(int layer) const { return 0; }
  /// Copies opaque records of a layer to memory of the host's, expert e's e times `stride` bytes
  /// behind `to`, on the call's stream. FailedPrecondition on a device: one lies neither in a block
  /// nor in pinned memory.
  virtual absl::Status CopyRecords(const ExecutorCall& call, const VersionedStore& store,
                                   absl::Span<const int32_t> experts, std::byte* to,
                                   int64_t stride) {
    return NotSupported();
  }

  // Resident-forward prediction, between two Multiply of a call.

  virtual bool has_partial_output() const { return false; }
  /// The output of the experts that `computed` [E] marks and of the shared expert.
  virtual PartialRows PartialOutput(const ExecutorCall& call, const RoutingResult& routing,
                                    absl::Span<const uint8_t> computed) {
    return {};
  }
  /// Scores of the next layer: on next_input of PartialOutput, or, where the host has not filled
  /// it, on the input of this call.
  virtual absl::Status ScoreNext(const ExecutorCall& call, bool filled,
                                 std::vector<float>* scores) {
    return NotSupported();
  }

  // Whole calls on a device with no host in the way, eager or captured in a graph.

  /// Whether RunResident is possible, given a usable version of every expert.
  virtual bool runs_resident() const { return false; }
  /// Enqueues a whole call. Legal under stream capture. Its routing arrives later. Where the device
  /// serves misses (ServeMisses) a captured call needs no versions. `rule`: other than kTopK only
  /// of such a call.
  virtual absl::Status RunResident(const ExecutorCall& call, const PolicyContext& context,
                                   const RoutingRule& rule, const VersionedStore& store) {
    return NotSupported();
  }
  /// Whether a routing may be given where the executor computes, apart from host memory.
  virtual bool takes_given() const { return false; }
  /// The same with the routing given on the device. An id out of range is taken for -1.
  virtual absl::Status RunGiven(const ExecutorCall& call, const GivenRouting& given,
                                const PolicyContext& context, const VersionedStore& store) {
    return NotSupported();
  }
  /// Where an expert may be missing: brings such a routing to the host, and waits for it.
  virtual absl::Status BringGiven(const ExecutorCall& call, const GivenRouting& given,
                                  std::vector<int32_t>* ids, std::vector<float>* weights) {
    return NotSupported();
  }
  /// Behind BringGiven: the experts that were used, to where the host wants them.
  virtual absl::Status ReturnUsed(const ExecutorCall& call, absl::Span<const int32_t> used,
                                  int32_t* to) {
    return NotSupported();
  }
  // Misses of captured calls, served by the device: it decides who is in the blocks that the store
  // lends, brings what is missing, and no policy is asked.

  /// OK: from now on captured RunResident and RunGiven serve what is missing, for a store of one
  /// version or of a second one that answers low, by the rules that the executor was made for
  /// (ServedRules). FailedPrecondition: why not. Asked once, before the first call; what stands by
  /// is there. May read records.
  virtual absl::Status ServeMisses(const VersionedStore& store) {
    return absl::FailedPreconditionError("this backend asks the host about misses");
  }
  /// The cost of misses now, where a CPU takes some of them: by this captured calls share them.
  /// Before OpenStep.
  virtual void SetCpuCosts(const CpuCosts& costs) {}
  /// Whether the blocks are lent: then nobody may use the store.
  virtual bool lent() const { return false; }
  /// Before the host uses the store: takes the blocks back, and waits for replays of open steps.
  /// Replays that follow are right, and bring everything. FailedPrecondition while such a step's
  /// stream is being captured.
  virtual absl::Status TakeBack(VersionedStore* store) { return absl::OkStatus(); }
  /// Counts of serving since this was last asked, as far as they have arrived. False: nothing.
  virtual bool TakeServed(ServedCount* added) { return false; }

  /// Whether calls on the stream are recorded into a graph. Asked once a call: half of a call that
  /// is recorded would be a wrong graph.
  virtual absl::StatusOr<bool> Capturing(void* stream) const { return false; }
  /// The routing of the oldest RunResident that was not taken yet and whose results have arrived;
  /// false when there is none. Calls that were captured leave none.
  virtual bool TakeRouting(PolicyContext* context, RoutingResult* routing) { return false; }
  /// Selections of captured calls' replays since this was last asked, as far as they have arrived,
  /// about a step late: of each layer its experts, then all of them together. False:
  /// nothing.
  virtual bool TakeSelections(std::vector<SelectionCount>* added) { return false; }
  /// Before the first call of a step: makes the handles of its epoch, the newest, visible to
  /// captured calls, and what replays have to know of the rows; where misses are served, lends the
  /// blocks. Where there may be captured calls of other strategies the store tracks its changes.
  virtual absl::Status OpenStep(VersionedStore* store, int64_t epoch, const StepRows& rows,
                                void* stream) {
    return absl::OkStatus();
  }
  /// Behind the last call of a step, replayed graphs included.
  virtual absl::Status CloseStep(void* stream) { return absl::OkStatus(); }

 private:
  static absl::Status NotSupported();
};

}  // namespace moert

#endif  // MOERT_LIB_EXEC_EXECUTOR_H_
