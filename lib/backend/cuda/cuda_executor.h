// The arithmetic of layer calls on a CUDA device.
#ifndef MOERT_LIB_BACKEND_CUDA_CUDA_EXECUTOR_H_
#define MOERT_LIB_BACKEND_CUDA_CUDA_EXECUTOR_H_

#include <memory>

#include "backend/backend.h"
#include "backend/cuda/compute_fence.h"

namespace moert::cuda {

/// Device memory of an executor's buffers.
absl::StatusOr<int64_t> ExecutorBytes(const ExpertSource& source, absl::Span<const int> versions,
                                      int64_t max_tokens);

/// `fence` is borrowed and passed behind every batch of kernels.
absl::StatusOr<std::unique_ptr<DeviceExecutor>> MakeCudaExecutor(const ExecutorParts& parts,
                                                                 int device, ComputeFence* fence);

}  // namespace moert::cuda

#endif  // MOERT_LIB_BACKEND_CUDA_CUDA_EXECUTOR_H_
