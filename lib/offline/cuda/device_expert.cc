#include "offline/cuda/device_expert.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "exec/cuda/route/device_routing.h"
#include "kernels/cuda/offline/block_rows.h"
#include "kernels/cuda/offline/dense_product.h"

namespace moert::offline {
namespace {

using cuda::Carver;

/// The memory that Run needs; later members are for changes. All row-major.
struct RunMemory {
  float *gate_w, *up_w, *down_w;
  float *x, *gate, *up, *h, *y;

  static RunMemory Carve(const MoeLayerSpec& layer, int64_t rows, Carver* c) {
    const int64_t weights = layer.hidden * layer.intermediate;
    RunMemory m;
    for (float** to : {&m.gate_w, &m.up_w, &m.down_w}) *to = c->Take<float>(weights);
    for (float** to : {&m.x, &m.y}) *to = c->Take<float>(rows * layer.hidden);
    for (float** to : {&m.gate, &m.up, &m.h}) *to = c->Take<float>(rows * layer.intermediate);
    return m;
  }
};

struct ChangeMemory {
  float *other_w, *shares_x, *shares_h;
  float *gate, *up, *h_change, *y_change, *token_weights;
  double* sums;

  static ChangeMemory Carve(const MoeLayerSpec& layer, int64_t rows, Carver* c) {
    ChangeMemory m;
    m.other_w = c->Take<float>(layer.hidden * layer.intermediate);
    m.shares_x = c->Take<float>(layer.hidden * layer.hidden);
    m.shares_h = c->Take<float>(layer.intermediate * layer.intermediate);
    for (float** to : {&m.gate, &m.up, &m.h_change}) {
      *to = c->Take<float>(rows * layer.intermediate);
    }
    m.y_change = c->Take<float>(rows * layer.hidden);
    m.token_weights = c->Take<float>(rows);
    m.sums = c->Take<double>(rows);
    return m;
  }
};

template <typename Memory>
int64_t BytesOf(const MoeLayerSpec& layer, int64_t rows) {
  Carver counted;
  Memory::Carve(layer, rows, &counted);
  return counted.used();
}

class CudaExpert final : public DeviceExpert {
 public:
  CudaExpert(int device, const MoeLayerSpec& layer, int64_t rows, ExpertLane* lane,
             std::function<void(const absl::Status& status)> returned)
      : device_(device),
        rows_(rows),
        hidden_(layer.hidden),
        intermediate_(layer.intermediate),
        layer_(layer),
        activation_(cuda::MakeDeviceActivation(layer.activation)),
        lane_(*lane),
        returned_(std::move(returned)) {}

  // Leaves no work on the lane for its next user.
  ~CudaExpert() override {
    const cuda::DeviceScope scope(device_);
    status_.Update(cuda::ToStatus(cudaStreamSynchronize(lane_.stream), "cudaStreamSynchronize"));
    returned_(status_);
  }

  absl::Status Load(const ExpertMatrices& weights, const float* x) override {
    return On([&]() -> absl::Status {
      MOERT_RETURN_IF_ERROR(Grow(&lane_.run, BytesOf<RunMemory>(layer_, rows_)));
      Carver carver(lane_.run.data());
      run_ = RunMemory::Carve(layer_, rows_, &carver);
      x_ = run_.x;
      h_ = run_.h;
      MOERT_RETURN_IF_ERROR(Upload(weights.gate, run_.gate_w));
      MOERT_RETURN_IF_ERROR(Upload(weights.up, run_.up_w));
      MOERT_RETURN_IF_ERROR(Upload(weights.down, run_.down_w));
      return lane_.Upload(x, rows_ * hidden_, run_.x);
    });
  }
  absl::Status SetWeights(Projection block, absl::Span<const float> weights) override {
    return On([&] { return Upload(weights, WeightsOf(block)); });
  }
  absl::Status RunGateUp() override {
    return On([&]() -> absl::Status {
      MOERT_RETURN_IF_ERROR(Multiply(run_.x, run_.gate_w, intermediate_, hidden_, run_.gate));
      MOERT_RETURN_IF_ERROR(Multiply(run_.x, run_.up_w, intermediate_, hidden_, run_.up));
      return Activate(run_.gate, run_.up, nullptr, run_.h);
    });
  }
  absl::Status RunDown() override {
    return On([&] { return Multiply(run_.h, run_.down_w, hidden_, intermediate_, run_.y); });
  }
  absl::Status Outputs(float* y) override {
    return On([&] { return lane_.Download(run_.y, rows_ * hidden_, y); });
  }
  absl::Status Hidden(float* h) override {
    return On([&] { return lane_.Download(run_.h, rows_ * intermediate_, h); });
  }

  absl::Status PrepareChanges(absl::Span<const float> token_weights) override {
    token_weights_.assign(token_weights.begin(), token_weights.end());
    return On([&]() -> absl::Status {
      MOERT_RETURN_IF_ERROR(Grow(&lane_.changes, BytesOf<ChangeMemory>(layer_, rows_)));
      Carver carver(lane_.changes.data());
      change_ = ChangeMemory::Carve(layer_, rows_, &carver);
      return Upload(token_weights_, change_.token_weights);
    });
  }

  absl::StatusOr<InputMoments> Moments(bool down) override {
    const int64_t k = down ? intermediate_ : hidden_;
    std::vector<double> lower(k * k);
    MOERT_RETURN_IF_ERROR(On([&]() -> absl::Status {
      MOERT_RETURN_IF_ERROR(Grow(&lane_.moments, k * k * static_cast<int64_t>(sizeof(double))));
      auto* const h = reinterpret_cast<double*>(lane_.moments.data());
      MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchMoments(down ? run_.h : run_.x, change_.token_weights,
                                                     rows_, k, h, lane_.stream));
      return lane_.Download(h, k * k, lower.data());
    }));
    return InputMoments(k, rows_, std::move(lower));
  }
  absl::Status SetFactor(bool down, const GptqFactor& factor) override {
    return On([&] { return Upload(factor.shares, down ? change_.shares_h : change_.shares_x); });
  }
  absl::Status SetInputs(const float* x, const float* h) override {
    x_ = run_.x;
    h_ = run_.h;
    if (x == nullptr) return absl::OkStatus();
    return On([&]() -> absl::Status {
      const int64_t count_x = rows_ * hidden_, count_h = rows_ * intermediate_;
      MOERT_RETURN_IF_ERROR(
          Grow(&lane_.inputs, (count_x + count_h) * static_cast<int64_t>(sizeof(float))));
      auto* const inputs = reinterpret_cast<float*>(lane_.inputs.data());
      MOERT_RETURN_IF_ERROR(lane_.Upload(x, count_x, inputs));
      MOERT_RETURN_IF_ERROR(lane_.Upload(h, count_h, inputs + count_x));
      x_ = inputs;
      h_ = inputs + count_x;
      return absl::OkStatus();
    });
  }

  absl::StatusOr<double> Change(Projection block, absl::Span<const float> weights) override {
    double norm = 0;
    MOERT_RETURN_IF_ERROR(On([&]() -> absl::Status {
      MOERT_RETURN_IF_ERROR(Upload(weights, change_.other_w));
      return Measure(block, &norm);
    }));
    return norm;
  }
  absl::StatusOr<double> ChangeByGptq(Projection block, const MatrixLayout& layout) override {
    double norm = 0;
    MOERT_RETURN_IF_ERROR(On([&]() -> absl::Status {
      GptqMatrix matrix = MatrixOf(block);
      matrix.back = change_.other_w;
      std::vector<GroupScale> scales;
      MOERT_RETURN_IF_ERROR(
          RoundGptq(layout, matrix, GptqOptions(), &lane_.gptq, lane_.stream, &scales));
      return Measure(block, &norm);
    }));
    return norm;
  }
  absl::StatusOr<QuantizedMatrix> RoundByGptq(Projection block,
                                              const MatrixLayout& layout) override {
    absl::StatusOr<QuantizedMatrix> q = absl::UnknownError("not rounded");
    MOERT_RETURN_IF_ERROR(On([&] {
      q = RoundGptqToHost(layout, MatrixOf(block), GptqOptions(), &lane_.gptq, &lane_);
      return q.status();
    }));
    return q;
  }
  bool CanRound(const MatrixLayout& layout) const override {
    return CanRoundGptq(layout, GptqOptions());
  }

  absl::Status LastChanges(int64_t rows, float* gate_up, float* down) override {
    return On([&]() -> absl::Status {
      MOERT_RETURN_IF_ERROR(lane_.Download(change_.y_change, rows * hidden_, down));
      MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchActivate(activation_, change_.gate, change_.up, run_.h,
                                                      change_.h_change, rows * intermediate_,
                                                      lane_.stream));
      MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchProduct({change_.h_change, intermediate_},
                                                     {run_.down_w, intermediate_}, change_.y_change,
                                                     rows, hidden_, intermediate_, lane_.stream));
      return lane_.Download(change_.y_change, rows * hidden_, gate_up);
    });
  }

 private:
  template <typename Work>
  absl::Status On(const Work& work) {
    const cuda::DeviceScope scope(device_);
    absl::Status status = scope.status();
    if (status.ok()) status = work();
    status_.Update(status);
    return status;
  }

  absl::Status Upload(absl::Span<const float> from, float* to) {
    return lane_.Upload(from.data(), static_cast<int64_t>(from.size()), to);
  }

  float* WeightsOf(Projection block) const {
    return block == Projection::kGate ? run_.gate_w
           : block == Projection::kUp ? run_.up_w
                                      : run_.down_w;
  }
  GptqMatrix MatrixOf(Projection block) const {
    GptqMatrix matrix;
    matrix.original = WeightsOf(block);
    matrix.shares = block == Projection::kDown ? change_.shares_h : change_.shares_x;
    return matrix;
  }

  absl::Status Multiply(const float* x, const float* w, int64_t out, int64_t in, float* y) {
    return MOERT_CUDA_STATUS(
        cuda::LaunchProduct({x, in}, {w, in}, y, rows_, out, in, lane_.stream));
  }
  absl::Status Activate(const float* gate, const float* up, const float* less, float* h) {
    return MOERT_CUDA_STATUS(
        cuda::LaunchActivate(activation_, gate, up, less, h, rows_ * intermediate_, lane_.stream));
  }

  /// Measures a block with the weights other_w.
  absl::Status Measure(Projection block, double* norm) {
    const float* less = nullptr;
    if (block == Projection::kDown) {
      MOERT_RETURN_IF_ERROR(
          Multiply(h_, change_.other_w, hidden_, intermediate_, change_.y_change));
      less = run_.y;
    } else {
      const bool gate = block == Projection::kGate;
      MOERT_RETURN_IF_ERROR(
          Multiply(x_, change_.other_w, intermediate_, hidden_, gate ? change_.gate : change_.up));
      MOERT_RETURN_IF_ERROR(Activate(gate ? change_.gate : run_.gate, gate ? run_.up : change_.up,
                                     run_.h, change_.h_change));
      MOERT_RETURN_IF_ERROR(
          Multiply(change_.h_change, run_.down_w, hidden_, intermediate_, change_.y_change));
    }
    MOERT_CUDA_RETURN_IF_ERROR(
        cuda::LaunchSquareSums(change_.y_change, less, rows_, hidden_, change_.sums, lane_.stream));
    sums_.resize(rows_);
    MOERT_RETURN_IF_ERROR(lane_.Download(change_.sums, rows_, sums_.data()));
    double total = 0;
    for (size_t t = 0; t < sums_.size(); ++t) {
      const double weight = token_weights_[t];
      total += weight * weight * sums_[t];
    }
    *norm = std::sqrt(total);
    return absl::OkStatus();
  }

  const int device_;
  const int64_t rows_, hidden_, intermediate_;
  const MoeLayerSpec& layer_;
  const cuda::DeviceActivation activation_;
  ExpertLane& lane_;
  const std::function<void(const absl::Status& status)> returned_;
  absl::Status status_;  // the first error
  RunMemory run_{};
  ChangeMemory change_{};
  const float* x_ = nullptr;  // of changes
  const float* h_ = nullptr;
  std::vector<float> token_weights_;
  std::vector<double> sums_;
};

}  // namespace

std::unique_ptr<DeviceExpert> MakeDeviceExpert(
    int device, const MoeLayerSpec& layer, int64_t rows, ExpertLane* lane,
    std::function<void(const absl::Status& status)> returned) {
  return std::make_unique<CudaExpert>(device, layer, rows, lane, std::move(returned));
}

int64_t DeviceExpertBytes(const MoeLayerSpec& layer, int64_t rows) {
  return BytesOf<RunMemory>(layer, rows) + BytesOf<ChangeMemory>(layer, rows);
}

}  // namespace moert::offline
