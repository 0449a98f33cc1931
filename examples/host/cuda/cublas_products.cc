#include "host/cuda/cublas_products.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "host/cuda/cublas.h"
#include "moert/backend.h"
#include "util/cuda_api.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

using gpu::Buffer;

// Of x and y together, on the device at once: more rows go in parts.
constexpr int64_t kFloatsAtOnce = int64_t{1} << 26;

struct Lane {
  Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane() {
    cublas.reset();
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
  cudaStream_t stream = nullptr;
  std::unique_ptr<Cublas> cublas;
  Buffer w, x, y;
};

absl::StatusOr<float*> Grown(Buffer* buffer, int64_t floats) {
  const int64_t bytes = floats * static_cast<int64_t>(sizeof(float));
  if (buffer->bytes() < bytes) {
    *buffer = Buffer();  // first, so that both need not fit
    MOERT_ASSIGN_OR_RETURN(*buffer, Buffer::Device(bytes));
  }
  return reinterpret_cast<float*>(buffer->data());
}

class CublasProducts final : public DeviceProducts {
 public:
  absl::Status Init(int lanes) {
    MOERT_RETURN_IF_ERROR(CudaStatus());
    RETURN_IF_CUDA_ERROR(cudaGetDevice(&device_));
    cudaDeviceProp properties;
    RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, device_));
    for (int i = 0; i < lanes; ++i) {
      auto lane = std::make_unique<Lane>();
      RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking));
      MOERT_ASSIGN_OR_RETURN(lane->cublas, Cublas::Open(lane->stream));
      name_ = fmt::format("{}, {}", properties.name, lane->cublas->library());
      free_.push_back(lane.get());
      lanes_.push_back(std::move(lane));
    }
    return absl::OkStatus();
  }

  absl::Status Multiply(const float* w, int64_t out, int64_t in, const float* x, int64_t rows,
                        float* y) override {
    if (rows <= 0) return absl::OkStatus();
    const gpu::DeviceScope scope(device_);
    Lane* const lane = Take();
    const absl::Status status = Run(lane, w, out, in, x, rows, y);
    // What is enqueued reads the caller's memory; nothing may be left of it after an error.
    if (!status.ok()) cudaStreamSynchronize(lane->stream);
    Return(lane, status);
    return status;
  }

  absl::Status first_error() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return first_error_;
  }
  const std::string& name() const override { return name_; }

 private:
  static absl::Status Run(Lane* lane, const float* w, int64_t out, int64_t in, const float* x,
                          int64_t rows, float* y) {
    constexpr auto kBytes = sizeof(float);
    const int64_t at_once = std::clamp<int64_t>(kFloatsAtOnce / (in + out), 1, rows);
    MOERT_ASSIGN_OR_RETURN(float* const device_w, Grown(&lane->w, out * in));
    MOERT_ASSIGN_OR_RETURN(float* const device_x, Grown(&lane->x, at_once * in));
    MOERT_ASSIGN_OR_RETURN(float* const device_y, Grown(&lane->y, at_once * out));
    RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(device_w, w, static_cast<size_t>(out * in) * kBytes,
                                         cudaMemcpyHostToDevice, lane->stream));
    for (int64_t first = 0; first < rows; first += at_once) {
      const int64_t count = std::min(at_once, rows - first);
      RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(device_x, x + first * in,
                                           static_cast<size_t>(count * in) * kBytes,
                                           cudaMemcpyHostToDevice, lane->stream));
      MOERT_RETURN_IF_ERROR(
          lane->cublas->MultiplyF32(device_w, out, in, device_x, count, device_y));
      RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(y + first * out, device_y,
                                           static_cast<size_t>(count * out) * kBytes,
                                           cudaMemcpyDeviceToHost, lane->stream));
    }
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(lane->stream));
    return absl::OkStatus();
  }

  Lane* Take() {
    std::unique_lock<std::mutex> lock(mutex_);
    returned_.wait(lock, [&] { return !free_.empty(); });
    Lane* const lane = free_.back();
    free_.pop_back();
    return lane;
  }
  void Return(Lane* lane, const absl::Status& status) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      first_error_.Update(status);
      free_.push_back(lane);
    }
    returned_.notify_one();
  }

  int device_ = 0;
  std::string name_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  mutable std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<Lane*> free_;  // with first_error_: under mutex_
  absl::Status first_error_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceProducts>> OpenCublasProducts(int lanes) {
  auto products = std::make_unique<CublasProducts>();
  MOERT_RETURN_IF_ERROR(products->Init(std::max(lanes, 1)));
  return products;
}

}  // namespace moert::host
