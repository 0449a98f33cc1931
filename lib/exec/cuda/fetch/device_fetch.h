// Engine::Fetch on a device: where the host's kernels find the experts of a layer.
#ifndef MOERT_LIB_EXEC_CUDA_FETCH_DEVICE_FETCH_H_
#define MOERT_LIB_EXEC_CUDA_FETCH_DEVICE_FETCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "exec/cuda/cache/routing_return.h"
#include "exec/cuda/compute_fence.h"
#include "exec/cuda/cuda_api.h"
#include "exec/executor.h"
#include "kernels/cuda/cache/slot_table.h"
#include "moert/model.h"
#include "store/versioned_store.h"

namespace moert::cuda {

/// Keeps a table of slots for each layer in device memory, and the host's copy of it. Writes only
/// entries that differ from what the table holds, or will hold when the stream gets there. One
/// caller at a time, with the device current.
class DeviceFetch {
 public:
  /// Bytes of device memory that Init takes.
  static int64_t Bytes(const MoeModelSpec& model);

  /// `ids` and `weights`: device memory for the pairs of a call, from which `returned` copies them
  /// to the host. All borrowed.
  absl::Status Init(const MoeModelSpec* model, int32_t* ids, float* weights,
                    RoutingReturn* returned, ComputeFence* fence);

  /// See DevicePath::PlaceSlots. If the stream is captured, the replay reads the table as OpenStep
  /// left it.
  absl::StatusOr<const int32_t*> Place(const ExecutorCall& call, const GivenRouting& given,
                                       const PolicyContext* late, const VersionedStore& store);
  /// See DevicePath::LeaveSlots.
  absl::Status Leave(cudaStream_t stream);
  /// Brings the tables of layers whose calls were captured up to date.
  absl::Status OpenStep(const VersionedStore& store, int64_t epoch, cudaStream_t stream);
  bool captured() const { return any_captured_; }

 private:
  absl::Status Enqueue(const ExecutorCall& call, const GivenRouting& given,
                       const PolicyContext* late, const VersionedStore& store);
  absl::Status Sync(const VersionedStore& store, int layer, int64_t epoch, cudaStream_t stream);
  absl::Status Flush(cudaStream_t stream);
  absl::Status Find(const ExecutorCall& call, const GivenRouting& given);

  const MoeModelSpec* model_ = nullptr;
  RoutingReturn* returned_ = nullptr;
  ComputeFence* fence_ = nullptr;
  Workspace w_{};               // only ids and weights are used
  Buffer table_;                // [all experts]
  std::vector<int32_t> first_;  // of each layer, in the table
  std::vector<int32_t> shadow_;
  std::vector<uint8_t> captured_;  // layers
  bool any_captured_ = false;
  SlotUpdates updates_;
};

/// Copies rows from device memory to host memory, as contiguous floats. Waits for them by the event
/// `arrived`.
absl::Status BringRows(const MatrixView& rows, cudaStream_t stream, cudaEvent_t arrived, float* to);

/// Copies a routing from device memory to the host: ids out of range as -1, no weights if none were
/// given. Waits likewise.
absl::Status BringRouting(const GivenRouting& given, int experts, cudaStream_t stream,
                          cudaEvent_t arrived, std::vector<int32_t>* ids,
                          std::vector<float>* weights);

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_FETCH_DEVICE_FETCH_H_
