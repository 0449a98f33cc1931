// Layer calls of an engine on the device. All rows of a step are alike, so that they go to the same
// experts: the number of experts is the model's k, the tokens of each are the rows.
#include <algorithm>
#include <chrono>
#include <memory>

#include "cli/probe/cuda/streams.h"
#include "cli/probe/device.h"
#include "cli/workload/random_vectors.h"
#include "cli/workload/synthetic_experts.h"
#include "moert/backend.h"
#include "moert/engine.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using Clock = std::chrono::steady_clock;
using gpu::Buffer;

constexpr int kLayers = 4;          // together beyond the second-level cache
constexpr int kSteps = 12;          // of one measurement
constexpr int64_t kBareInner = 16;  // intermediate size of experts that take no time

/// One engine, driven on a stream of its own.
class Driven {
 public:
  static absl::StatusOr<std::unique_ptr<Driven>> Create(std::shared_ptr<const ExpertSource> experts,
                                                        const std::string& strategy, double budget,
                                                        int64_t most) {
    auto d = std::make_unique<Driven>();
    EngineOptions options;
    options.backend = BackendKind::kCuda;
    options.strategy = strategy;
    options.budget = Budget::Fraction(budget);
    options.max_tokens_per_forward = most;
    d->hidden_ = experts->model().layers.front().hidden;
    MOERT_ASSIGN_OR_RETURN(d->engine_, Engine::Create(std::move(experts), options));
    MOERT_ASSIGN_OR_RETURN(d->stream_, Stream::Create());
    const int64_t bytes = most * d->hidden_ * static_cast<int64_t>(sizeof(float));
    MOERT_ASSIGN_OR_RETURN(d->x_, Buffer::Device(bytes));
    MOERT_ASSIGN_OR_RETURN(d->y_, Buffer::Device(bytes));
    MOERT_RETURN_IF_ERROR(d->SetInput(1, most));
    return d;
  }

  absl::Status SetInput(uint64_t seed, int64_t most) {
    std::vector<float> x(most * hidden_);
    for (int64_t i = 0; i < hidden_; ++i) {
      const float v = RandomNormal(seed, i);
      for (int64_t t = 0; t < most; ++t) x[t * hidden_ + i] = v;
    }
    RETURN_IF_CUDA_ERROR(
        cudaMemcpy(x_.data(), x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice));
    return absl::OkStatus();
  }

  absl::Status Step(int64_t rows) {
    StepInfo info;
    info.phase = Phase::kDecode;
    info.rows = rows;
    info.stream = stream_.get();
    MOERT_ASSIGN_OR_RETURN(const StepId step, engine_->BeginStep(info));
    MOERT_RETURN_IF_ERROR(Forward(step, rows));
    return engine_->EndStep(step);
  }

  /// Wall time of a layer, steps one after another.
  absl::StatusOr<double> EagerNs(int64_t rows) {
    for (int i = 0; i < 2; ++i) MOERT_RETURN_IF_ERROR(Step(rows));
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_.get()));
    const auto begin = Clock::now();
    for (int i = 0; i < kSteps; ++i) MOERT_RETURN_IF_ERROR(Step(rows));
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_.get()));
    const std::chrono::duration<double, std::nano> ns = Clock::now() - begin;
    return ns.count() / (kSteps * kLayers);
  }

  /// Time of a layer whose steps are replayed from a CUDA graph.
  absl::StatusOr<double> CapturedNs(int64_t rows) {
    MOERT_RETURN_IF_ERROR(Step(rows));
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_.get()));
    StepInfo info;
    info.phase = Phase::kDecode;
    info.rows = rows;
    info.stream = stream_.get();
    MOERT_ASSIGN_OR_RETURN(const StepId step, engine_->BeginStep(info));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    RETURN_IF_CUDA_ERROR(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
    const absl::Status forward = Forward(step, rows);
    cudaError_t error = cudaStreamEndCapture(stream_.get(), &graph);
    MOERT_RETURN_IF_ERROR(engine_->EndStep(step));
    if (!forward.ok() || error != cudaSuccess) {
      if (graph != nullptr) cudaGraphDestroy(graph);
      return forward.ok() ? gpu::ToStatus(error, "capturing a layer") : forward;
    }
    error = cudaGraphInstantiate(&replay, graph, 0);
    cudaGraphDestroy(graph);
    RETURN_IF_CUDA_ERROR(error);
    const absl::StatusOr<double> ns = ReplayNs(replay);
    cudaGraphExecDestroy(replay);
    return ns;
  }

 private:
  absl::Status Forward(StepId step, int64_t rows) {
    for (int l = 0; l < kLayers; ++l) {
      MOERT_RETURN_IF_ERROR(engine_->Forward(step, l,
                                             {x_.data(), DType::kF32, rows, hidden_, hidden_},
                                             {y_.data(), DType::kF32, rows, hidden_, hidden_}));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> ReplayNs(cudaGraphExec_t replay) {
    RETURN_IF_CUDA_ERROR(cudaGraphLaunch(replay, stream_.get()));
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_.get()));
    const auto begin = Clock::now();
    for (int i = 0; i < kSteps; ++i) {
      RETURN_IF_CUDA_ERROR(cudaGraphLaunch(replay, stream_.get()));
    }
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_.get()));
    const std::chrono::duration<double, std::nano> ns = Clock::now() - begin;
    return ns.count() / (kSteps * kLayers);
  }

  int64_t hidden_ = 0;
  Stream stream_;
  Buffer x_, y_;
  std::unique_ptr<Engine> engine_;  // goes first: it may still use the stream
};

absl::StatusOr<std::shared_ptr<const ExpertSource>> Experts(Shape shape, int64_t inner) {
  shape.spec.layers.resize(1);
  shape.spec.layers.resize(kLayers, shape.spec.layers.front());
  for (int l = 0; l < kLayers; ++l) {
    shape.spec.layers[l].model_layer = l;
    shape.spec.layers[l].intermediate = inner;
    shape.spec.layers[l].shared_intermediate = 0;
    shape.spec.layers[l].shared_gate = false;
  }
  MOERT_ASSIGN_OR_RETURN(const Workload gates,
                         Workload::Create("steady", shape.spec, shape.common_share, 1));
  SyntheticOptions options;
  options.memory_bytes = int64_t{128} << 20;
  return MakeSyntheticExperts(shape, gates, 1, options);
}

}  // namespace

absl::StatusOr<DeviceLayers> ProbeDeviceLayers(const Shape& shape, const std::vector<int>& tokens,
                                               int repeats) {
  MOERT_RETURN_IF_ERROR(CudaStatus());
  DeviceLayers probe;
  const int64_t inner = shape.spec.layers.front().intermediate;
  const int64_t most = *std::max_element(tokens.begin(), tokens.end());
  MOERT_ASSIGN_OR_RETURN(const auto full, Experts(shape, inner));
  MOERT_ASSIGN_OR_RETURN(const auto bare, Experts(shape, kBareInner));
  probe.experts = shape.spec.layers.front().routing.top_k;
  probe.expert_bytes = full->layout(0, 0, 0).bytes;

  // The cache holds half of the experts: never all, so that the host looks at every routing, and
  // always those that are asked for.
  MOERT_ASSIGN_OR_RETURN(const auto resident, Driven::Create(full, "resident", 1, most));
  MOERT_ASSIGN_OR_RETURN(const auto cached, Driven::Create(full, "on-demand", 0.5, most));
  MOERT_ASSIGN_OR_RETURN(const auto bare_resident, Driven::Create(bare, "resident", 1, most));
  MOERT_ASSIGN_OR_RETURN(const auto bare_cached, Driven::Create(bare, "on-demand", 0.5, most));
  for (const int rows : tokens) {
    std::vector<double> samples[4];
    for (int r = 0; r < repeats; ++r) {
      MOERT_ASSIGN_OR_RETURN(const double a, resident->CapturedNs(rows));
      MOERT_ASSIGN_OR_RETURN(const double b, bare_resident->CapturedNs(rows));
      MOERT_ASSIGN_OR_RETURN(const double c, cached->EagerNs(rows));
      MOERT_ASSIGN_OR_RETURN(const double d, bare_cached->EagerNs(rows));
      samples[0].push_back(a);
      samples[1].push_back(b);
      samples[2].push_back(c);
      samples[3].push_back(d);
    }
    probe.layers.push_back({rows, SpreadOf(samples[0]), SpreadOf(samples[1]), SpreadOf(samples[2]),
                            SpreadOf(samples[3])});
  }
  return probe;
}

}  // namespace moert::cli
