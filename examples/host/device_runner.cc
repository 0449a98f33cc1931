#include "examples/host/device_runner.h"

#include <algorithm>
#include <string>

#include "base/status_macros.h"

#ifdef MOERT_HOST_CUDA
#include <cuda_runtime_api.h>
#endif

namespace moert::host {
namespace {

#ifdef MOERT_HOST_CUDA

absl::Status Check(cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(std::string("CUDA: ") + cudaGetErrorString(error));
}

class CudaRunner final : public EngineRunner {
 public:
  CudaRunner(Engine* engine, int64_t max_rows) : EngineRunner(engine, max_rows), engine_(engine) {}
  ~CudaRunner() override {
    cudaFree(rows_);
    cudaFreeHost(staging_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  absl::Status Init(int device) {
    int64_t hidden = 0;
    for (const MoeLayerSpec& layer : engine_->model().layers)
      hidden = std::max(hidden, layer.hidden);
    const size_t bytes = static_cast<size_t>(max_rows() * hidden) * sizeof(float);
    MOERT_RETURN_IF_ERROR(Check(cudaSetDevice(device)));
    MOERT_RETURN_IF_ERROR(Check(cudaMalloc(&rows_, bytes)));
    MOERT_RETURN_IF_ERROR(Check(cudaMallocHost(&staging_, bytes)));
    return Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }

  absl::Status Forward(int moe_layer, const float* x, int64_t rows, float* out) override {
    const int64_t hidden = engine_->model().layers[moe_layer].hidden;
    const size_t bytes = static_cast<size_t>(rows * hidden) * sizeof(float);
    auto* staging = static_cast<float*>(staging_);
    std::copy(x, x + rows * hidden, staging);
    MOERT_RETURN_IF_ERROR(
        Check(cudaMemcpyAsync(rows_, staging, bytes, cudaMemcpyHostToDevice, stream_)));
    MOERT_RETURN_IF_ERROR(engine_->Forward(step(), moe_layer,
                                           {rows_, DType::kF32, rows, hidden, hidden},
                                           {rows_, DType::kF32, rows, hidden, hidden}));
    MOERT_RETURN_IF_ERROR(
        Check(cudaMemcpyAsync(staging, rows_, bytes, cudaMemcpyDeviceToHost, stream_)));
    MOERT_RETURN_IF_ERROR(Check(cudaStreamSynchronize(stream_)));
    std::copy(staging, staging + rows * hidden, out);
    return absl::OkStatus();
  }

 protected:
  void* stream() const override { return stream_; }

 private:
  Engine* const engine_;
  void* rows_ = nullptr;
  void* staging_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

#endif  // MOERT_HOST_CUDA

}  // namespace

absl::StatusOr<std::unique_ptr<EngineRunner>> MakeRunner(Engine* engine, int64_t max_rows,
                                                         int device) {
  if (engine->backend() == BackendKind::kCpu) {
    return std::make_unique<EngineRunner>(engine, max_rows);
  }
#ifdef MOERT_HOST_CUDA
  auto runner = std::make_unique<CudaRunner>(engine, max_rows);
  MOERT_RETURN_IF_ERROR(runner->Init(device));
  return runner;
#else
  return absl::UnimplementedError("this build of the host has no CUDA");
#endif
}

}  // namespace moert::host
