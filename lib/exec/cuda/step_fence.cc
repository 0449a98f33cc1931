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
    return MOERT_CUDA_STATUS(fence_.Await());
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

namespace cuda {
namespace {

class CudaSideStream final : public SideStream {
 public:
  explicit CudaSideStream(int device) : device_(device) {}
  ~CudaSideStream() override {
    DeviceScope scope(device_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    for (cudaEvent_t event : {forked_, done_}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }

  absl::Status Init() {
    DeviceScope scope(device_);
    MOERT_RETURN_IF_ERROR(scope.status());
    MOERT_RETURN_IF_ERROR(MakeUrgentStream(&stream_));
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming));
    return MOERT_CUDA_STATUS(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
  }

  void* get() const override { return stream_; }
  absl::Status Fork(void* stream) override {
    return Order(static_cast<cudaStream_t>(stream), forked_, stream_);
  }
  absl::Status Join(void* stream) override {
    return Order(stream_, done_, static_cast<cudaStream_t>(stream));
  }

 private:
  /// Makes stream `then` wait for the work that `first` has been given so far.
  absl::Status Order(cudaStream_t first, cudaEvent_t event, cudaStream_t then) const {
    DeviceScope scope(device_);
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(event, first));
    return MOERT_CUDA_STATUS(cudaStreamWaitEvent(then, event, 0));
  }

  const int device_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t forked_ = nullptr, done_ = nullptr;
};

}  // namespace
}  // namespace cuda

absl::StatusOr<std::unique_ptr<SideStream>> MakeSideStream(int device) {
  auto side = std::make_unique<cuda::CudaSideStream>(device);
  MOERT_RETURN_IF_ERROR(side->Init());
  return side;
}

}  // namespace moert
