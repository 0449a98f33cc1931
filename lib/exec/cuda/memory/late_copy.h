// Brings counters from device memory to the host. They are copied behind a step, on a side stream,
// and nothing waits for the copy. It may include some counts of the next step. The counters only
// grow and the host takes differences, so every event is counted once.
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

  /// `from`: device memory, borrowed; Init sets it to zero.
  absl::Status Init(void* from, int64_t bytes);
  /// Enqueues a copy behind the work that `stream` was given so far. Does nothing if the last copy
  /// was not taken yet: a later copy brings these counts too.
  absl::Status Bring(cudaStream_t stream);
  /// The counters of the last Bring, valid until the next one; null: none, or not arrived yet.
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
