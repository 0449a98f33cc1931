#include "host/cuda/cublas_products.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "host/cuda/cublas.h"
#include "host/cuda/staged_copies.h"
#include "moert/backend.h"
#include "util/cuda_api.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

using gpu::Buffer;

// Most floats of x and y on the device at once; larger products run in parts.
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
  StagedCopies copies;
  Buffer w, x, y;
};

struct Kept final : KeptWeights {
  Kept(int on, int64_t rows, int64_t columns) : device(on), out(rows), in(columns) {}
  ~Kept() override {
    const gpu::DeviceScope scope(device);
    w = Buffer();
  }
  const int device;
  const int64_t out, in;
  Buffer w;
};

absl::StatusOr<float*> Grown(Buffer* buffer, int64_t floats) {
  const int64_t bytes = floats * static_cast<int64_t>(sizeof(float));
  if (buffer->bytes() < bytes) {
    *buffer = Buffer();  // freed first, so that both need not fit
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
    size_t free = 0, total = 0;
    RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&free, &total));
    may_keep_ = static_cast<int64_t>(free / 2);
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
    return OnLane([&](Lane* lane) -> absl::Status {
      MOERT_ASSIGN_OR_RETURN(float* const device_w, Grown(&lane->w, out * in));
      MOERT_RETURN_IF_ERROR(lane->copies.Upload(w, out * in, device_w, lane->stream));
      return Run(lane, device_w, out, in, x, rows, y);
    });
  }

  absl::StatusOr<std::unique_ptr<KeptWeights>> Keep(const float* w, int64_t out,
                                                    int64_t in) override {
    const int64_t bytes = out * in * static_cast<int64_t>(sizeof(float));
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (bytes > may_keep_) {
        return absl::ResourceExhaustedError("half of the device's memory is for other work");
      }
      may_keep_ -= bytes;
    }
    auto kept = std::make_unique<Kept>(device_, out, in);
    MOERT_RETURN_IF_ERROR(OnLane([&](Lane* lane) -> absl::Status {
      MOERT_ASSIGN_OR_RETURN(float* const device_w, Grown(&kept->w, out * in));
      MOERT_RETURN_IF_ERROR(lane->copies.Upload(w, out * in, device_w, lane->stream));
      RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(lane->stream));
      return absl::OkStatus();
    }));
    return kept;
  }
  absl::Status MultiplyKept(const KeptWeights& w, const float* x, int64_t rows, float* y) override {
    const auto& kept = static_cast<const Kept&>(w);
    return OnLane([&](Lane* lane) {
      return Run(lane, reinterpret_cast<const float*>(kept.w.data()), kept.out, kept.in, x, rows,
                 y);
    });
  }

  absl::Status first_error() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return first_error_;
  }
  const std::string& name() const override { return name_; }

 private:
  template <typename Work>
  absl::Status OnLane(const Work& work) {
    const gpu::DeviceScope scope(device_);
    Lane* const lane = Take();
    const absl::Status status = work(lane);
    // No work may be in flight for the lane's next user.
    if (!status.ok()) cudaStreamSynchronize(lane->stream);
    Return(lane, status);
    return status;
  }

  /// device_w: on the device; x and y are not.
  static absl::Status Run(Lane* lane, const float* device_w, int64_t out, int64_t in,
                          const float* x, int64_t rows, float* y) {
    if (rows <= 0) return absl::OkStatus();
    const int64_t at_once = std::clamp<int64_t>(kFloatsAtOnce / (in + out), 1, rows);
    MOERT_ASSIGN_OR_RETURN(float* const device_x, Grown(&lane->x, at_once * in));
    MOERT_ASSIGN_OR_RETURN(float* const device_y, Grown(&lane->y, at_once * out));
    for (int64_t first = 0; first < rows; first += at_once) {
      const int64_t count = std::min(at_once, rows - first);
      MOERT_RETURN_IF_ERROR(
          lane->copies.Upload(x + first * in, count * in, device_x, lane->stream));
      MOERT_RETURN_IF_ERROR(
          lane->cublas->MultiplyF32(device_w, out, in, device_x, count, device_y));
      MOERT_RETURN_IF_ERROR(
          lane->copies.Download(device_y, count * out, y + first * out, lane->stream));
    }
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
  std::vector<Lane*> free_;  // guarded by mutex_, as are those below
  int64_t may_keep_ = 0;     // bytes that weights may still take; never given back
  absl::Status first_error_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceProducts>> OpenCublasProducts(int lanes) {
  auto products = std::make_unique<CublasProducts>();
  MOERT_RETURN_IF_ERROR(products->Init(std::max(lanes, 1)));
  return products;
}

}  // namespace moert::host
