#include "exec/side_stream.h"

#include "base/status_macros.h"
#include "exec/cuda/cuda_api.h"

namespace moert {
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
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
    return absl::OkStatus();
  }

  void* get() const override { return stream_; }
  absl::Status Fork(void* stream) override {
    return Order(static_cast<cudaStream_t>(stream), forked_, stream_);
  }
  absl::Status Join(void* stream) override {
    return Order(stream_, done_, static_cast<cudaStream_t>(stream));
  }

 private:
  /// `then` waits for `first` as it is now.
  absl::Status Order(cudaStream_t first, cudaEvent_t event, cudaStream_t then) const {
    DeviceScope scope(device_);
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(event, first));
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(then, event, 0));
    return absl::OkStatus();
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
