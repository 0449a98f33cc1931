// The arithmetic of layer calls on a CUDA device.
#ifndef MOERT_LIB_EXEC_CUDA_CUDA_EXECUTOR_H_
#define MOERT_LIB_EXEC_CUDA_CUDA_EXECUTOR_H_

#include <memory>
#include <vector>

#include "exec/backend.h"
#include "exec/cuda/compute_fence.h"
#include "exec/cuda/memory/device_transfers.h"

namespace moert::cuda {

/// Device memory of an executor's buffers.
absl::StatusOr<int64_t> ExecutorBytes(const ExpertSource& source, absl::Span<const int> versions,
                                      int64_t max_tokens, const ExpertNumbering* numbering,
                                      const ServedRules& served, ActivationNumerics numerics);

/// Pointers are borrowed.
struct CudaExecutorOptions {
  int device = 0;
  std::vector<int> cpus;            // see EngineOptions
  ComputeFence* fence = nullptr;    // passed after every batch of kernels
  DeviceSource* records = nullptr;  // for the CPU's products and for copies made by the device
  ActivationNumerics numerics = ActivationNumerics::kBF16;
  bool paced = false;               // copies keep to a rate, which copies made by the device do not
};
absl::StatusOr<std::unique_ptr<Executor>> MakeCudaExecutor(const ExecutorParts& parts,
                                                           const CudaExecutorOptions& options);

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_CUDA_EXECUTOR_H_
