// Executor: the arithmetic of layer calls, on one backend. The engine runs one loop over it,
// route -> predict -> plan -> fetch -> multiply -> combine, and does not know which one it has.
#ifndef MOERT_LIB_EXEC_EXECUTOR_H_
#define MOERT_LIB_EXEC_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "exec/device_path.h"
#include "moert/model.h"
#include "moert/policy.h"
#include "moert/router.h"
#include "moert/tensor.h"
#include "store/versioned_store.h"

namespace moert {

struct OpaqueProduct;

/// The inputs of a routing that the executor makes.
struct RoutingRequest {
  RoutingRule rule;          // kTopK: the model's own choice
  LayerResidency residency;  // of the layer
  const VersionedStore* store = nullptr;
  absl::Span<const int64_t> request_ids;  // [tokens], or empty: all rows are one request
  bool next_gate = false;                 // also score the next layer on the same input
};

/// An expert that is ready to be multiplied.
struct ReadyExpert {
  int32_t expert = 0;
  ExpertHandle handle;
};

/// Resident-forward prediction: the rows exchanged with the host. Both fp32 [tokens, hidden].
struct PartialRows {
  MatrixView output;             // this layer's output, as far as it was multiplied
  MutableMatrixView next_input;  // the next layer's input, which the host fills in
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
  // Bytes of pinned memory that hold records, and the number of records that replaced others there.
  int64_t pinned_bytes = 0;
  int64_t pinned_swaps = 0;
};

/// Resident-forward prediction, between two calls of Multiply.
class ResidentForward {
 public:
  virtual ~ResidentForward() = default;
  /// The output of the experts that `computed` [E] marks and of the shared expert.
  virtual PartialRows PartialOutput(const ExecutorCall& call, const RoutingResult& routing,
                                    absl::Span<const uint8_t> computed) = 0;
};

/// Used under the engine's lock, one layer call at a time: Check, Route or SetRouting, Multiply
/// once or more, Combine. An expert's result does not depend on which Multiply of a call computes
/// it.
///
/// Optional capabilities are classes of their own; null: this executor does not have it. The device
/// path is never null, but may be absent (DevicePath::present).
class Executor {
 public:
  virtual ~Executor() = default;
  virtual ExecutorStats stats() const { return {}; }
  virtual DevicePath* device_path() {
    static DevicePath none;
    return &none;
  }
  virtual CpuOffload* cpu_offload() { return nullptr; }
  virtual ResidentForward* resident_forward() { return nullptr; }

  /// Refuses a call whose matrices do not fit the layer, before any state has changed. `routed`:
  /// the routing is given.
  virtual absl::Status Check(const ExecutorCall& call, const MoeLayerSpec& layer,
                             bool routed) const;
  /// Refuses rows that are not [call.tokens, hidden of the layer] of a float type. `what` is for
  /// the message.
  static absl::Status CheckRows(absl::string_view what, const MatrixView& rows,
                                const ExecutorCall& call, const MoeLayerSpec& layer);
  /// Computes scores, chosen experts and their weights, and groups tokens by expert. *routing is
  /// complete when this returns.
  virtual absl::Status Route(const ExecutorCall& call, const RoutingRequest& request,
                             RoutingResult* routing) = 0;
  /// Replaces Route if the routing is given, with tokens grouped. For calls in which the host
  /// multiplies (Engine::Fetch), used only without a device path, and call.hidden may be empty.
  virtual absl::Status SetRouting(const ExecutorCall& call, const RoutingResult& routing) = 0;
  /// Computes or enqueues the products of `experts`, and those of the shared expert if this is the
  /// `first` Multiply of the call. The records may be unpinned when it returns: a block is not
  /// overwritten before this work is done.
  virtual absl::Status Multiply(const ExecutorCall& call, const RoutingResult& routing,
                                absl::Span<const ReadyExpert> experts, bool first) = 0;
  /// call.out = weighted sum of the products, in the order of k, then the shared expert.
  virtual absl::Status Combine(const ExecutorCall& call, const RoutingResult& routing) = 0;
  /// Scores of the next layer: on next_input of PartialOutput, or, where the host has not filled
  /// it, on the input of this call.
  virtual absl::Status ScoreNext(const ExecutorCall& call, bool filled, std::vector<float>* scores);
  /// Copies opaque records of a layer to the host's memory, on the call's stream: the record of
  /// expert e to `to` + e * `stride` bytes. FailedPrecondition on a device if a record lies neither
  /// in a block nor in pinned memory.
  virtual absl::Status CopyRecords(const ExecutorCall& call, const VersionedStore& store,
                                   absl::Span<const int32_t> experts, std::byte* to,
                                   int64_t stride);
  /// Runs the source's product of opaque records on records where they lie in RAM. Fills in the
  /// parts and the pool of `given`.
  virtual absl::Status MultiplyOnCpu(const VersionedStore& store, int64_t epoch,
                                     const OpaqueProduct& given);
};

}  // namespace moert

#endif  // MOERT_LIB_EXEC_EXECUTOR_H_
