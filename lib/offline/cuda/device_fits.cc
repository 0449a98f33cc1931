#include "offline/device_fits.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "exec/cuda/cuda_api.h"
#include "kernels/cuda/offline/fit_groups.h"
#include "moert/backend.h"
#include "offline/fit_forms.h"

namespace moert {
namespace {

// One uploads while others search and return.
constexpr int kLanes = 6;
// Weights on the device at once, a lane: more rows go in parts.
constexpr int64_t kMostWeights = int64_t{1} << 23;

static_assert(sizeof(GroupScale) == sizeof(cuda::Fit), "fits are copied as they are");

struct Lane {
  Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane() {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
  cudaStream_t stream = nullptr;
  cuda::Buffer weights, fits;
};

absl::Status Grow(cuda::Buffer* buffer, int64_t bytes) {
  if (buffer->bytes() >= bytes) return absl::OkStatus();
  *buffer = cuda::Buffer();  // first, so that both need not fit
  MOERT_ASSIGN_OR_RETURN(*buffer, cuda::Buffer::Device(bytes));
  return absl::OkStatus();
}

class CudaFits final : public DeviceFits {
 public:
  // The lanes' memory and streams go while their device is current.
  ~CudaFits() override {
    const cuda::DeviceScope scope(device_);
    lanes_.clear();
  }

  absl::Status Init() {
    MOERT_RETURN_IF_ERROR(CudaStatus());
    MOERT_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device_));
    const cuda::DeviceScope scope(device_);
    MOERT_RETURN_IF_ERROR(scope.status());
    for (int i = 0; i < kLanes; ++i) {
      auto lane = std::make_unique<Lane>();
      MOERT_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking));
      Return(lane.get(), absl::OkStatus());
      lanes_.push_back(std::move(lane));
    }
    return absl::OkStatus();
  }

  std::vector<GroupScale> Rtn(const MatrixLayout& layout, absl::Span<const float> weights,
                              const RtnOptions& options) override {
    const auto form = MakeRangeForm(layout.scheme, layout.group, options);
    if (!form) return {};
    return Search(layout, weights, [&](const cuda::FitMatrix& m, cuda::Fit* fits, void* stream) {
      return cuda::LaunchFitRtn(m, *form, fits, static_cast<CUstream_st*>(stream));
    });
  }
  std::vector<GroupScale> Hqq(const MatrixLayout& layout, absl::Span<const float> weights,
                              const HqqOptions& options) override {
    const auto form = MakeHqqForm(layout.scheme, options);
    if (!form) return {};
    return Search(layout, weights, [&](const cuda::FitMatrix& m, cuda::Fit* fits, void* stream) {
      return cuda::LaunchFitHqq(m, *form, fits, static_cast<CUstream_st*>(stream));
    });
  }

  absl::Status first_error() const override {
    const MutexLock lock(&mutex_);
    return first_error_;
  }

 private:
  template <typename Launch>
  std::vector<GroupScale> Search(const MatrixLayout& layout, absl::Span<const float> weights,
                                 const Launch& launch) {
    if (layout.group > cuda::kMostGroupValues) return {};
    std::vector<GroupScale> fits(static_cast<size_t>(layout.rows * layout.groups()),
                                 GroupScale::Unknown());
    const cuda::DeviceScope scope(device_);
    Lane* const lane = Take();
    absl::Status status = scope.status();
    const int64_t at_once = std::clamp<int64_t>(kMostWeights / layout.k, 1, layout.rows);
    for (int64_t row = 0; row < layout.rows && status.ok(); row += at_once) {
      const int64_t rows = std::min(at_once, layout.rows - row);
      status = Part(lane, layout, rows, weights.data() + row * layout.k, launch,
                    fits.data() + row * layout.groups());
    }
    // What is enqueued writes what is returned; nothing may be left of it after an error.
    if (!status.ok()) cudaStreamSynchronize(lane->stream);
    Return(lane, status);
    if (!status.ok()) fits.clear();
    return fits;
  }

  template <typename Launch>
  static absl::Status Part(Lane* lane, const MatrixLayout& layout, int64_t rows,
                           const float* weights, const Launch& launch, GroupScale* fits) {
    const int64_t bytes = rows * layout.k * static_cast<int64_t>(sizeof(float));
    const int64_t fit_bytes = rows * layout.groups() * static_cast<int64_t>(sizeof(cuda::Fit));
    MOERT_RETURN_IF_ERROR(Grow(&lane->weights, bytes));
    MOERT_RETURN_IF_ERROR(Grow(&lane->fits, fit_bytes));
    MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(lane->weights.data(), weights,
                                               static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                                               lane->stream));
    const cuda::FitMatrix matrix = {reinterpret_cast<const float*>(lane->weights.data()), rows,
                                    layout.k, static_cast<int>(layout.group)};
    MOERT_CUDA_RETURN_IF_ERROR(
        launch(matrix, reinterpret_cast<cuda::Fit*>(lane->fits.data()), lane->stream));
    MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(fits, lane->fits.data(),
                                               static_cast<size_t>(fit_bytes),
                                               cudaMemcpyDeviceToHost, lane->stream));
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(lane->stream));
    return absl::OkStatus();
  }

  Lane* Take() {
    const MutexLock lock(&mutex_);
    while (free_.empty()) returned_.Wait(&mutex_);
    Lane* const lane = free_.back();
    free_.pop_back();
    return lane;
  }
  void Return(Lane* lane, const absl::Status& status) {
    {
      const MutexLock lock(&mutex_);
      first_error_.Update(status);
      free_.push_back(lane);
    }
    returned_.NotifyOne();
  }

  int device_ = 0;
  std::vector<std::unique_ptr<Lane>> lanes_;
  mutable Mutex mutex_;
  CondVar returned_;
  std::vector<Lane*> free_ ABSL_GUARDED_BY(mutex_);
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceFits>> DeviceFits::Open() {
  auto fits = std::make_unique<CudaFits>();
  MOERT_RETURN_IF_ERROR(fits->Init());
  return fits;
}

}  // namespace moert
