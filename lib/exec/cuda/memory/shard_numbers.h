// Ids of a whole model, given on the device to an engine over some of its experts.
#ifndef MOERT_LIB_EXEC_CUDA_MEMORY_SHARD_NUMBERS_H_
#define MOERT_LIB_EXEC_CUDA_MEMORY_SHARD_NUMBERS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "exec/backend.h"
#include "exec/cuda/cuda_api.h"
#include "exec/executor.h"

namespace moert::cuda {

/// One caller at a time, with the device current; the caller orders its streams.
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

#endif  // MOERT_LIB_EXEC_CUDA_MEMORY_SHARD_NUMBERS_H_
