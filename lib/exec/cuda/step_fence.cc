#include "exec/step_fence.h"

#include "base/status_macros.h"
#include "exec/cuda/compute_fence.h"
#include "exec/cuda/cuda_api.h"

namespace moert {
namespace cuda {
namespace {

class CudaStepFence final : public StepFence {
 public:
  explicit CudaStepFence(int device) : device_(device) {}

  absl::Status Init() {
    const DeviceScope scope(device_);
    MOERT_RETURN_IF_ERROR(scope.status());
    return fence_.Init();
  }
  absl::Status Enter(void* stream) override {
    const DeviceScope scope(device_);
    MOERT_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(stream));
    return capturing ? absl::OkStatus() : fence_.Enter(static_cast<cudaStream_t>(stream));
  }
  absl::Status Pass(void* stream) override {
    const DeviceScope scope(device_);
    const absl::StatusOr<bool> capturing = IsCapturing(stream);
    if (!capturing.ok()) fence_.Miss();
    if (!capturing.ok() || *capturing) return capturing.status();
    return fence_.Pass(static_cast<cudaStream_t>(stream));
  }
  void Miss() override { fence_.Miss(); }
  absl::Status Await() override {
    const DeviceScope scope(device_);
    MOERT_CUDA_RETURN_IF_ERROR(fence_.Await());
    return absl::OkStatus();
  }

 private:
  const int device_;
  ComputeFence fence_;
};

}  // namespace
}  // namespace cuda

absl::StatusOr<std::unique_ptr<StepFence>> MakeStepFence(int device) {
  auto fence = std::make_unique<cuda::CudaStepFence>(device);
  MOERT_RETURN_IF_ERROR(fence->Init());
  return fence;
}

}  // namespace moert
