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

/// Keeps for each layer a table of slots in device memory, and the host's side of it. Writes only
/// what
/// differs from what the table holds, or will hold when the stream gets there. One caller at a
/// time, with the device current.
class DeviceFetch {
 public:
  /// Bytes of device memory that Init takes.
  static int64_t Bytes(const MoeModelSpec& model);

  /// `ids` and `weights`: device memory for the pairs of a call, where `returned` brings them from.
  /// All borrowed.
  absl::Status Init(const MoeModelSpec* model, int32_t* ids, float* weights,
                    RoutingReturn* returned, ComputeFence* fence);

  /// See Executor::PlaceSlots. Where the stream is captured the table is read at replay, as
  /// OpenStep left it.
  absl::StatusOr<const int32_t*> Place(const ExecutorCall& call, const GivenRouting& given,
                                       const PolicyContext* late, const VersionedStore& store);
  /// See Executor::LeaveSlots.
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
  Workspace w_{};               // of it ids and weights
  Buffer table_;                // [all experts]
  std::vector<int32_t> first_;  // of each layer, in the table
  std::vector<int32_t> shadow_;
  std::vector<uint8_t> captured_;  // layers
  bool any_captured_ = false;
  SlotUpdates updates_;
};

/// Rows in device memory as floats in host memory, contiguous. Waits for them; `arrived` is an
/// event to do it with.
absl::Status BringRows(const MatrixView& rows, cudaStream_t stream, cudaEvent_t arrived, float* to);

/// A routing in device memory; ids out of range as -1, no weights where none were given. Waits
/// likewise.
absl::Status BringRouting(const GivenRouting& given, int experts, cudaStream_t stream,
                          cudaEvent_t arrived, std::vector<int32_t>* ids,
                          std::vector<float>* weights);

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_FETCH_DEVICE_FETCH_H_
