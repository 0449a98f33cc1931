// Counters in device memory on their way to the host. Behind a step, on a stream beside it, they
// are copied and nobody waits. The copy may see some of what the next step has begun to count; of
// counters that only grow the host takes differences, and everything is counted once.
#ifndef MOERT_LIB_EXEC_CUDA_MEMORY_LATE_COPY_H_
#define MOERT_LIB_EXEC_CUDA_MEMORY_LATE_COPY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "exec/cuda/cuda_api.h"

namespace moert::cuda {

/// One caller at a time.
class LateCopy {
 public:
  LateCopy() = default;
  ~LateCopy();
  LateCopy(const LateCopy&) = delete;
  LateCopy& operator=(const LateCopy&) = delete;

  /// `from`: device memory, borrowed; set to zeros.
  absl::Status Init(void* from, int64_t bytes);
  /// Enqueues a copy behind what `stream` was given so far, unless the last one was not taken: then
  /// the next one brings what this would have.
  absl::Status Bring(cudaStream_t stream);
  /// The finding of the last Bring, valid until the next one; null: none, or it has not arrived.
  const std::byte* Take();

 private:
  void* from_ = nullptr;
  Buffer memory_;  // pinned
  cudaStream_t beside_ = nullptr;
  cudaEvent_t counted_ = nullptr;
  cudaEvent_t arrived_ = nullptr;
  bool under_way_ = false;
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_MEMORY_LATE_COPY_H_
