#include "offline/offline_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "exec/cuda/cuda_api.h"
#include "kernels/cuda/offline/fit_groups.h"
#include "offline/cuda/block_forward.h"
#include "offline/cuda/device_expert.h"
#include "offline/cuda/gptq_rounding.h"
#include "offline/cuda/lanes.h"
#include "offline/fit_forms.h"

namespace moert {
namespace {

// Lanes for fitting scales: one uploads while others search and download.
constexpr int kFitLanes = 6;
// Each thread of a pool has an expert, up to this number.
constexpr int kExpertLanes = 16;
// The size of the largest expert that the device processes; larger ones are left to the CPU.
constexpr int64_t kMostExpertBytes = int64_t{4} << 30;
// Weights on the device at once per lane; more rows are processed in parts.
constexpr int64_t kMostWeights = int64_t{1} << 23;

static_assert(sizeof(GroupScale) == sizeof(cuda::Fit), "fits are copied as they are");

struct FitLane : offline::LaneStream {
  cuda::Buffer weights, fits;
};

struct GptqLane : offline::LaneStream {
  cuda::Buffer original, shares;
  offline::GptqRoom room;
};

class CudaOfflineDevice final : public OfflineDevice {
 public:
  // The lanes' memory and streams are freed while their device is current.
  ~CudaOfflineDevice() override {
    const cuda::DeviceScope scope(device_);
    fits_.Clear();
    gptq_.Clear();
    experts_.Clear();
  }

  absl::Status Init() {
    MOERT_RETURN_IF_ERROR(CudaStatus());
    MOERT_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device_));
    const cuda::DeviceScope scope(device_);
    MOERT_RETURN_IF_ERROR(scope.status());
    MOERT_RETURN_IF_ERROR(fits_.Init(kFitLanes));
    MOERT_RETURN_IF_ERROR(gptq_.Init(kFitLanes));
    return experts_.Init(kExpertLanes);
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

  std::optional<QuantizedMatrix> Gptq(const MatrixLayout& layout, absl::Span<const float> weights,
                                      const GptqFactor& factor,
                                      const GptqOptions& options) override {
    if (!offline::CanRoundGptq(layout, options)) return std::nullopt;
    const cuda::DeviceScope scope(device_);
    GptqLane* const lane = gptq_.Take();
    absl::StatusOr<QuantizedMatrix> q = absl::UnknownError("not rounded");
    if (scope.status().ok()) {
      q = Round(lane, layout, weights, factor, options);
    } else {
      q = scope.status();
    }
    // Leaves no work on the lane for its next user.
    if (!q.ok()) cudaStreamSynchronize(lane->stream);
    gptq_.Return(lane);
    Note(q.status());
    if (!q.ok()) return std::nullopt;
    return *std::move(q);
  }

  std::unique_ptr<DeviceExpert> Expert(const MoeLayerSpec& layer, int64_t rows) override {
    if (!layer.activation.gated || rows == 0 ||
        offline::DeviceExpertBytes(layer, rows) > kMostExpertBytes) {
      return nullptr;
    }
    offline::ExpertLane* const lane = experts_.Take();
    return offline::MakeDeviceExpert(device_, layer, rows, lane,
                                     [this, lane](const absl::Status& status) {
                                       experts_.Return(lane);
                                       Note(status);
                                     });
  }

  absl::Status AddExperts(const BlockRows& block, const ExpertReader& read, ThreadPool* pool,
                          std::vector<uint8_t>* done) override {
    const MutexLock lock(&block_mutex_);
    const cuda::DeviceScope scope(device_);
    offline::BlockForward forward(device_, block, read, pool, &experts_);
    Note(scope.status().ok() ? forward.Run(done) : scope.status());
    return forward.read_error();
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
    FitLane* const lane = fits_.Take();
    absl::Status status = scope.status();
    const int64_t at_once = std::clamp<int64_t>(kMostWeights / layout.k, 1, layout.rows);
    for (int64_t row = 0; row < layout.rows && status.ok(); row += at_once) {
      const int64_t rows = std::min(at_once, layout.rows - row);
      status = Part(lane, layout, rows, weights.data() + row * layout.k, launch,
                    fits.data() + row * layout.groups());
    }
    if (!status.ok()) cudaStreamSynchronize(lane->stream);
    fits_.Return(lane);
    Note(status);
    if (!status.ok()) fits.clear();
    return fits;
  }

  template <typename Launch>
  static absl::Status Part(FitLane* lane, const MatrixLayout& layout, int64_t rows,
                           const float* weights, const Launch& launch, GroupScale* fits) {
    const int64_t bytes = rows * layout.k * static_cast<int64_t>(sizeof(float));
    const int64_t fit_bytes = rows * layout.groups() * static_cast<int64_t>(sizeof(cuda::Fit));
    MOERT_RETURN_IF_ERROR(offline::Grow(&lane->weights, bytes));
    MOERT_RETURN_IF_ERROR(offline::Grow(&lane->fits, fit_bytes));
    MOERT_RETURN_IF_ERROR(
        lane->Upload(weights, rows * layout.k, reinterpret_cast<float*>(lane->weights.data())));
    const cuda::FitMatrix matrix = {reinterpret_cast<const float*>(lane->weights.data()), rows,
                                    layout.k, static_cast<int>(layout.group), layout.k};
    MOERT_CUDA_RETURN_IF_ERROR(
        launch(matrix, reinterpret_cast<cuda::Fit*>(lane->fits.data()), lane->stream));
    return lane->Download(reinterpret_cast<const GroupScale*>(lane->fits.data()),
                          rows * layout.groups(), fits);
  }

  static absl::StatusOr<QuantizedMatrix> Round(GptqLane* lane, const MatrixLayout& layout,
                                               absl::Span<const float> weights,
                                               const GptqFactor& factor,
                                               const GptqOptions& options) {
    const auto put = [lane](absl::Span<const float> from,
                            cuda::Buffer* to) -> absl::StatusOr<const float*> {
      const auto count = static_cast<int64_t>(from.size());
      MOERT_RETURN_IF_ERROR(offline::Grow(to, count * static_cast<int64_t>(sizeof(float))));
      auto* const on_device = reinterpret_cast<float*>(to->data());
      MOERT_RETURN_IF_ERROR(lane->Upload(from.data(), count, on_device));
      return on_device;
    };
    offline::GptqMatrix matrix;
    MOERT_ASSIGN_OR_RETURN(matrix.original, put(weights, &lane->original));
    MOERT_ASSIGN_OR_RETURN(matrix.shares, put(factor.shares, &lane->shares));
    return offline::RoundGptqToHost(layout, matrix, options, &lane->room, lane);
  }

  void Note(const absl::Status& status) {
    const MutexLock lock(&mutex_);
    first_error_.Update(status);
  }

  int device_ = 0;
  offline::Lanes<FitLane> fits_;
  offline::Lanes<GptqLane> gptq_;
  offline::Lanes<offline::ExpertLane> experts_;
  Mutex block_mutex_;  // one block at a time: its rows may fill the device
  mutable Mutex mutex_;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<OfflineDevice>> OfflineDevice::Open() {
  auto fits = std::make_unique<CudaOfflineDevice>();
  MOERT_RETURN_IF_ERROR(fits->Init());
  return fits;
}

}  // namespace moert
