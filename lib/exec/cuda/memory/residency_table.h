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

/// Writes only rows that differ from what the table holds, or will hold when the stream gets there.
/// One caller at a time.
class ResidencyTable {
 public:
  /// `table`: HandleCount(model) rows of device memory. All borrowed.
  absl::Status Init(const MoeModelSpec* model, const DeviceModel* on_device, ExpertHandle* table);

  /// For captured calls: brings the whole table to the state that the newest step sees. The store
  /// tracks its changes, so only layers that other calls wrote since the last time are compared as
  /// a whole.
  absl::Status SyncNewest(VersionedStore* store, int64_t epoch, cudaStream_t stream);

  /// Collects a change, which Flush enqueues at the latest.
  absl::Status Set(int layer, int expert, const moert::ExpertHandle& handle, cudaStream_t stream);
  absl::Status Flush(cudaStream_t stream);
  /// Brings a layer's rows to the state that a step of `epoch` sees.
  absl::Status SyncLayer(const VersionedStore& store, int layer, int64_t epoch,
                         cudaStream_t stream);

  /// The rows of a layer: [experts + 1], the last is the shared expert's.
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
      dirty_layers_;  // layers whose rows may be those of a step other than the newest
  std::vector<ExpertKey> changed_;  // scratch
  TableUpdates updates_;
};

/// Translates ids in device memory from the whole model's numbers to those of an engine that holds
/// some of the experts (a shard). One caller at a time, with the device current; the caller orders
/// its streams.
class ShardNumbers {
 public:
  /// Bytes of device memory that Init takes for calls of up to `pairs` ids.
  static int64_t Bytes(const ExpertNumbering& numbering, int64_t pairs);

  /// An empty numbering: ids are the engine's own and need no translation.
  absl::Status Init(const ExpertNumbering& numbering, int64_t pairs);
  bool any() const { return !experts_.empty(); }
  /// Returns `given` in the engine's numbers, -1 for experts that are not in this engine. Writes
  /// used_ids, which is null in the result: a shard never substitutes experts. Valid until the next
  /// call.
  absl::StatusOr<GivenRouting> Own(int layer, const GivenRouting& given, cudaStream_t stream);

 private:
  Buffer memory_;
  const int32_t* table_ = nullptr;        // [all experts of the model]
  int32_t* ids_ = nullptr;                // [pairs]
  std::vector<int32_t> first_, experts_;  // of each layer
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_MEMORY_RESIDENCY_TABLE_H_
