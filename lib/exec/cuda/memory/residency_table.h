// The host's side of the residency table in device memory (design rule 3).
#ifndef MOERT_LIB_EXEC_CUDA_MEMORY_RESIDENCY_TABLE_H_
#define MOERT_LIB_EXEC_CUDA_MEMORY_RESIDENCY_TABLE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "exec/backend.h"
#include "exec/cuda/cuda_api.h"
#include "exec/cuda/memory/device_model.h"
#include "exec/executor.h"
#include "kernels/cuda/route/route.h"
#include "moert/model.h"
#include "store/versioned_store.h"

namespace moert::cuda {

/// Writes only what differs from what the table holds, or will hold when the stream gets there.
/// One caller at a time.
class ResidencyTable {
 public:
  /// `table`: HandleCount(model) rows of device memory. All borrowed.
  absl::Status Init(const MoeModelSpec* model, const DeviceModel* on_device, ExpertHandle* table);

  /// As the step begun last sees all experts, for calls that were captured. The store tracks its
  /// changes; only layers that other calls wrote since the last time are gone through whole.
  absl::Status SyncNewest(VersionedStore* store, int64_t epoch, cudaStream_t stream);

  /// Gathers a change; it is enqueued by Flush at the latest.
  absl::Status Set(int layer, int expert, const moert::ExpertHandle& handle, cudaStream_t stream);
  absl::Status Flush(cudaStream_t stream);
  /// All experts of a layer as a step of `epoch` sees them.
  absl::Status SyncLayer(const VersionedStore& store, int layer, int64_t epoch,
                         cudaStream_t stream);

  /// Rows of a layer: [experts + 1], the last is the shared expert.
  const ExpertHandle* rows(int layer) const {
    return table_ + on_device_->layer(layer).first_handle;
  }

 private:
  absl::Status Write(ExpertKey key, const moert::ExpertHandle& handle, cudaStream_t stream);

  const MoeModelSpec* model_ = nullptr;
  const DeviceModel* on_device_ = nullptr;
  ExpertHandle* table_ = nullptr;
  std::vector<moert::ExpertHandle> shadow_;  // what the table holds or will
  std::vector<uint8_t>
      dirty_layers_;                // layers that may hold what another than the newest step sees
  std::vector<ExpertKey> changed_;  // scratch
  TableUpdates updates_;
};

/// Ids of a whole model, given on the device to an engine over some of its experts. One caller at a
/// time, with the device current; the caller orders its streams.
class ShardNumbers {
 public:
  /// Bytes of device memory that Init takes for calls of up to `pairs` ids.
  static int64_t Bytes(const ExpertNumbering& numbering, int64_t pairs);

  /// An empty numbering: ids are the engine's own, and stay.
  absl::Status Init(const ExpertNumbering& numbering, int64_t pairs);
  bool any() const { return !experts_.empty(); }
  /// `given` in the engine's numbers, -1 for what is not here. used_ids is written here, and null
  /// in what is returned: nothing substitutes in a shard. Valid until the next call.
  absl::StatusOr<GivenRouting> Own(int layer, const GivenRouting& given, cudaStream_t stream);

 private:
  Buffer memory_;
  const int32_t* table_ = nullptr;        // [all experts of the model]
  int32_t* ids_ = nullptr;                // [pairs]
  std::vector<int32_t> first_, experts_;  // of each layer
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_MEMORY_RESIDENCY_TABLE_H_
