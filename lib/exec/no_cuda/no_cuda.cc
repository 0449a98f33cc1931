// Stands in for the CUDA backend in builds without it.
#include "base/pinned_memory.h"
#include "exec/backend.h"
#include "exec/row_kernels.h"
#include "exec/step_fence.h"

namespace moert {

absl::Status CudaStatus() {
  return absl::UnavailableError(
      "this build has no CUDA backend; configure with -DMOERT_CUDA=ON, or use the cpu backend");
}

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const EngineOptions& options) {
  return CudaStatus();
}


absl::StatusOr<std::unique_ptr<StepFence>> MakeStepFence(int device) { return CudaStatus(); }

absl::StatusOr<std::unique_ptr<SideStream>> MakeSideStream(int device) { return CudaStatus(); }

absl::StatusOr<std::unique_ptr<RowKernels>> MakeRowKernels(int device) { return CudaStatus(); }

absl::StatusOr<DeviceRates> RatesOf(int device) { return CudaStatus(); }

absl::StatusOr<std::unique_ptr<OwnedIds>> MakeOwnedIds(int device, int64_t experts, int64_t pairs) {
  return CudaStatus();
}

absl::StatusOr<std::shared_ptr<void>> LockPages(std::byte* memory, int64_t bytes) {
  return CudaStatus();
}

absl::StatusOr<std::shared_ptr<HostAllocator>> MakePinnedAllocator() { return CudaStatus(); }

}  // namespace moert
