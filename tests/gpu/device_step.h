// Drives an engine on a CUDA device.
#ifndef MOERT_TESTS_GPU_DEVICE_STEP_H_
#define MOERT_TESTS_GPU_DEVICE_STEP_H_

#include <cuda_runtime_api.h>

#include <vector>

#include "moert/engine.h"
#include "tests/support/catch.h"
#include "tests/support/relative_error.h"

namespace moert::test {

/// fp32 hidden states in device memory, and a stream.
class DeviceRowsBuffer {
 public:
  explicit DeviceRowsBuffer(size_t floats, unsigned flags = cudaStreamNonBlocking)
      : bytes_(floats * sizeof(float)) {
    REQUIRE(cudaMalloc(&x_, bytes_) == cudaSuccess);
    REQUIRE(cudaMalloc(&y_, bytes_) == cudaSuccess);
    REQUIRE(cudaStreamCreateWithFlags(&stream_, flags) == cudaSuccess);
  }
  ~DeviceRowsBuffer() {
    cudaStreamDestroy(stream_);
    cudaFree(x_);
    cudaFree(y_);
  }
  DeviceRowsBuffer(const DeviceRowsBuffer&) = delete;
  DeviceRowsBuffer& operator=(const DeviceRowsBuffer&) = delete;

  float* x() const { return static_cast<float*>(x_); }
  float* y() const { return static_cast<float*>(y_); }
  cudaStream_t stream() const { return stream_; }

  void Set(const std::vector<float>& x) {
    REQUIRE(cudaMemcpyAsync(x_, x.data(), bytes_, cudaMemcpyHostToDevice, stream_) == cudaSuccess);
    // Rows that a call leaves unwritten show as NaN.
    REQUIRE(cudaMemsetAsync(y_, 0xff, bytes_, stream_) == cudaSuccess);
  }
  std::vector<float> Get() {
    std::vector<float> y(bytes_ / sizeof(float));
    REQUIRE(cudaMemcpyAsync(y.data(), y_, bytes_, cudaMemcpyDeviceToHost, stream_) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream_) == cudaSuccess);
    return y;
  }

 private:
  const size_t bytes_;
  void* x_ = nullptr;
  void* y_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

/// A step whose layers all read the same rows and write to the same place.
inline absl::Status RunLayers(Engine* engine, Phase phase, int64_t rows,
                              const DeviceRowsBuffer& device) {
  const int64_t hidden = engine->model().layers[0].hidden;
  StepInfo info;
  info.phase = phase;
  info.rows = rows;
  info.stream = device.stream();
  const auto step = engine->BeginStep(info);
  if (!step.ok()) return step.status();
  absl::Status status;
  for (int l = 0; l < engine->model().num_layers() && status.ok(); ++l) {
    status = engine->Forward(*step, l, {device.x(), DType::kF32, rows, hidden, hidden},
                             {device.y(), DType::kF32, rows, hidden, hidden});
  }
  status.Update(engine->EndStep(*step));
  return status;
}

/// As RunStep, in device memory.
inline absl::Status RunDeviceStep(Engine* engine, Phase phase, std::vector<float> x, int64_t rows,
                                  DeviceRowsBuffer* device, std::vector<float>* outputs,
                                  absl::Span<const int32_t> token_ids = {}) {
  const int64_t hidden = engine->model().layers[0].hidden;
  StepInfo info;
  info.phase = phase;
  info.rows = rows;
  info.token_ids = token_ids;
  info.stream = device->stream();
  auto step = engine->BeginStep(info);
  if (!step.ok()) return step.status();
  absl::Status status;
  for (int l = 0; l < engine->model().num_layers() && status.ok(); ++l) {
    device->Set(x);
    status = engine->Forward(*step, l, {device->x(), DType::kF32, rows, hidden, hidden},
                             {device->y(), DType::kF32, rows, hidden, hidden});
    if (!status.ok()) break;
    const std::vector<float> y = device->Get();
    outputs->insert(outputs->end(), y.begin(), y.end());
    for (size_t i = 0; i < x.size(); ++i) x[i] = 0.8f * x[i] + y[i];
  }
  const absl::Status ended = engine->EndStep(*step);
  return status.ok() ? ended : status;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_DEVICE_STEP_H_
