// Many copies in one call of the runtime, done by the copy engines.
#ifndef MOERT_LIB_EXEC_CUDA_MEMORY_COPY_BATCH_H_
#define MOERT_LIB_EXEC_CUDA_MEMORY_COPY_BATCH_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "exec/cuda/cuda_api.h"

namespace moert::cuda {

/// One caller at a time, with the device current.
class CopyBatch {
 public:
  /// Adds a copy within device memory, or from pinned memory to it. Copies of a batch must not
  /// overlap.
  void Add(std::byte* to, const std::byte* from, size_t bytes);
  /// Enqueues the added copies, in any order, and clears the batch. From CUDA 12.8 on copies within
  /// the device leave the multiprocessors to kernels.
  absl::Status Enqueue(cudaStream_t stream);
  void Clear();
  bool empty() const { return to_.empty(); }

 private:
  absl::Status EnqueueEach(cudaStream_t stream) const;

  std::vector<void*> to_;
  std::vector<const void*> from_;
  std::vector<size_t> bytes_;
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_MEMORY_COPY_BATCH_H_
