#include "host/cuda/device_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "host/cuda/few_rows_kernel.h"
#include "host/cuda/token_kernels.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

using gpu::Buffer;
using gpu::Carver;
using gpu::DeviceScope;

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceDecoder>> DeviceDecoder::Load(
    const Checkpoint& checkpoint, const HfConfig& config, Engine* engine,
    const DeviceDecoderOptions& options) {
  MOERT_RETURN_IF_ERROR(CheckDeviceMixers(config));
  DeviceScope scope(options.device);
  MOERT_ASSIGN_OR_RETURN(DeviceWeights weights, DeviceWeights::Load(checkpoint, config));
  return Create(std::move(weights), config, engine, options);
}

absl::StatusOr<std::unique_ptr<DeviceDecoder>> DeviceDecoder::Create(
    DeviceWeights weights, const HfConfig& config, Engine* engine,
    const DeviceDecoderOptions& options) {
  MOERT_RETURN_IF_ERROR(CheckDeviceMixers(config));
  std::unique_ptr<DeviceDecoder> d(new DeviceDecoder(config, engine, options));
  DeviceScope scope(options.device);
  MOERT_RETURN_IF_ERROR(d->Init(std::move(weights)));
  return d;
}

DeviceDecoder::~DeviceDecoder() {
  DeviceScope scope(options_.device);
  if (stream_ == nullptr) return;
  cudaStreamSynchronize(stream_);
  graphs_.Clear();
  products_.reset();
  cudaStreamDestroy(stream_);
}

absl::Status DeviceDecoder::Init(DeviceWeights weights) {
  weights_ = std::move(weights);
  RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  MOERT_ASSIGN_OR_RETURN(products_, DenseProducts::Create(stream_, options_.kernels));
  MOERT_RETURN_IF_ERROR(upload_.Init(options_.max_rows));

  const int64_t rows = options_.max_rows, hidden = config_.hidden_size;
  logit_rows_ = std::clamp<int64_t>((int64_t{1} << 24) / config_.vocab_size, 8, 512);
  const auto carve = [&](Carver* c) {
    residual_ = c->Take<float>(rows * hidden);
    spare_ = c->Take<float>(kFewRows * hidden);
    normed_ = c->Take<float>(rows * hidden);
    delta_ = c->Take<float>(rows * hidden);
    rounded_ = c->Take<uint16_t>(rows * hidden);
    hidden_ = c->Take<uint16_t>(rows * hidden);
    gate_up_ = c->Take<float>(rows * 2 * config_.dense_intermediate);
    activated_ = c->Take<uint16_t>(rows * config_.dense_intermediate);
    logits_ = c->Take<float>(logit_rows_ * config_.vocab_size);
    best_ = c->Take<int32_t>(logit_rows_);
    zeros_ = c->Take<std::byte>(kZeroBytes + BestBytes(logit_rows_));
    targets_ = c->Take<int32_t>(logit_rows_);
    nll_ = c->Take<double>(logit_rows_);
  };
  Carver count;
  carve(&count);
  MOERT_ASSIGN_OR_RETURN(memory_, Buffer::Device(count.used()));
  Carver carver(memory_.data());
  carve(&carver);
  RETURN_IF_CUDA_ERROR(
      cudaMemset(zeros_, 0, static_cast<size_t>(kZeroBytes + BestBytes(logit_rows_))));
  // The step's stream does not wait for other streams, so wait here for this and for the weights.
  RETURN_IF_CUDA_ERROR(cudaDeviceSynchronize());
  MOERT_RETURN_IF_ERROR(mixers_.Init(config_, weights_, products_.get(), rows, stream_));
  MOERT_ASSIGN_OR_RETURN(pinned_, Buffer::Pinned(logit_rows_ * 16 + 3 * 256));
  Carver host(pinned_.data());
  best_on_host_ = host.Take<int32_t>(logit_rows_);
  targets_on_host_ = host.Take<int32_t>(logit_rows_);
  nll_on_host_ = host.Take<double>(logit_rows_);

  const GraphNeeds& needs = engine_->graph_needs();
  graphs_allowed_ = options_.graphs && needs.capturable;
  eager_every_ = needs.eager_every;
  graph_rows_ = needs.max_rows;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Sequence>> DeviceDecoder::NewSequence(int64_t max_tokens) {
  MOERT_RETURN_IF_ERROR(CheckDeviceLength(config_, max_tokens));
  DeviceScope scope(options_.device);
  return DeviceSequence::Create(config_, rope_, max_tokens);
}

absl::StatusOr<StepId> DeviceDecoder::BeginStep(StepPhase phase,
                                                absl::Span<const SequenceInput> inputs) {
  std::vector<int64_t> request_ids;
  for (const SequenceInput& input : inputs) {
    request_ids.insert(request_ids.end(), input.tokens.size(), input.request_id);
  }
  StepInfo info;
  info.phase = phase == StepPhase::kPrefill ? Phase::kPrefill : Phase::kDecode;
  info.rows = static_cast<int64_t>(request_ids.size());
  info.request_ids = request_ids;
  info.stream = stream_;
  return engine_->BeginStep(info);
}

absl::Status DeviceDecoder::Run(StepPhase phase, absl::Span<const SequenceInput> inputs) {
  MOERT_RETURN_IF_ERROR(CheckInputs(config_, inputs, options_.max_rows));
  DeviceScope scope(options_.device);
  rows_ = 0;
  have_logits_ = false;
  StepShape shape;
  MOERT_RETURN_IF_ERROR(upload_.Enqueue(inputs, stream_, &shape));
  MOERT_RETURN_IF_ERROR(mixers_.Reserve(shape, [&]() -> absl::Status {
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_));
    graphs_.Clear();  // they contain the old address
    return absl::OkStatus();
  }));
  MOERT_ASSIGN_OR_RETURN(const StepId step, BeginStep(phase, inputs));
  absl::Status status = Execute(phase, shape, step);
  status.Update(engine_->EndStep(step));
  MOERT_RETURN_IF_ERROR(status);
  rows_ = shape.rows;
  have_logits_ = WithLogits(shape);
  for (const SequenceInput& input : inputs) {
    static_cast<DeviceSequence*>(input.cache)->Commit(static_cast<int64_t>(input.tokens.size()));
  }
  return absl::OkStatus();
}

absl::Status DeviceDecoder::Execute(StepPhase phase, const StepShape& shape, StepId step) {
  const bool too_many = graph_rows_ > 0 && shape.rows > graph_rows_;
  if (!graphs_allowed_ || too_many || phase != StepPhase::kDecode || !WithLogits(shape)) {
    return EnqueueStep(shape, step);
  }
  const StepGraphs::Shape key{shape.rows, shape.pieces};
  const bool observed = eager_every_ > 0 && ++turn_ % eager_every_ == 0;
  cudaGraphExec_t graph = graphs_.Find(key);
  if (graph != nullptr && !observed) {
    ++replays_;
    RETURN_IF_CUDA_ERROR(cudaGraphLaunch(graph, stream_));
    return absl::OkStatus();
  }
  MOERT_RETURN_IF_ERROR(EnqueueStep(shape, step));
  if (graph != nullptr || !graphs_.Worth(key)) return absl::OkStatus();
  // Replayed from the next step on: handles that this step has changed are in the engine's table
  // only for the calls above; replays see them from a later step on.
  return graphs_.Record(key, stream_, [&] { return EnqueueStep(shape, step); });
}

absl::Status DeviceDecoder::EnqueueHead(int64_t first, int64_t rows) {
  const DeviceMatrix& head = weights_.output();
  MOERT_RETURN_IF_ERROR(
      products_->Multiply(head, hidden_ + first * config_.hidden_size, rows, logits_));
  if (head.bias() == nullptr) return absl::OkStatus();
  RETURN_IF_CUDA_ERROR(LaunchAddBias(logits_, head.bias(), static_cast<int>(rows),
                                     static_cast<int>(config_.vocab_size), stream_));
  return absl::OkStatus();
}

absl::Status DeviceDecoder::Wait() {
  RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_));
  return absl::OkStatus();
}

absl::StatusOr<const float*> DeviceDecoder::LogitsOf(int64_t first, int64_t rows) {
  if (have_logits_) return logits_ + first * config_.vocab_size;
  MOERT_RETURN_IF_ERROR(EnqueueHead(first, rows));
  return logits_;
}

absl::Status DeviceDecoder::RowLogits(int64_t first, int64_t rows, float* logits) {
  DeviceScope scope(options_.device);
  const int64_t vocab = config_.vocab_size;
  for (int64_t at = 0; at < rows; at += logit_rows_) {
    const int64_t count = std::min(logit_rows_, rows - at);
    MOERT_ASSIGN_OR_RETURN(const float* from, LogitsOf(first + at, count));
    RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(logits + at * vocab, from,
                                         static_cast<size_t>(count * vocab) * 4,
                                         cudaMemcpyDeviceToHost, stream_));
    MOERT_RETURN_IF_ERROR(Wait());
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> DeviceDecoder::Best(int64_t row) {
  DeviceScope scope(options_.device);
  if (!have_logits_) {
    MOERT_RETURN_IF_ERROR(EnqueueHead(row, 1));
    RETURN_IF_CUDA_ERROR(LaunchBest(logits_, 1, static_cast<int>(config_.vocab_size),
                                    best_scratch(), best_, stream_));
    RETURN_IF_CUDA_ERROR(
        cudaMemcpyAsync(best_on_host_, best_, sizeof(int32_t), cudaMemcpyDeviceToHost, stream_));
  }
  MOERT_RETURN_IF_ERROR(Wait());
  const int32_t best = best_on_host_[have_logits_ ? row : 0];
  if (best == kNotANumber) return absl::InternalError("the model's logits are not numbers (NaN)");
  if (best < 0) return absl::InternalError("the model's logits are not finite");
  return best;
}

absl::Status DeviceDecoder::Score(int64_t first, absl::Span<const int32_t> targets, double* nll) {
  DeviceScope scope(options_.device);
  const auto rows = static_cast<int64_t>(targets.size());
  const auto vocab = static_cast<int>(config_.vocab_size);
  for (int64_t at = 0; at < rows; at += logit_rows_) {
    const int64_t count = std::min(logit_rows_, rows - at);
    MOERT_ASSIGN_OR_RETURN(const float* from, LogitsOf(first + at, count));
    std::copy_n(targets.data() + at, count, targets_on_host_);
    const auto ids = static_cast<size_t>(count) * sizeof(int32_t);
    RETURN_IF_CUDA_ERROR(
        cudaMemcpyAsync(targets_, targets_on_host_, ids, cudaMemcpyHostToDevice, stream_));
    RETURN_IF_CUDA_ERROR(
        LaunchScore(from, targets_, static_cast<int>(count), vocab, nll_, stream_));
    RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(nll_on_host_, nll_,
                                         static_cast<size_t>(count) * sizeof(double),
                                         cudaMemcpyDeviceToHost, stream_));
    MOERT_RETURN_IF_ERROR(Wait());
    std::copy_n(nll_on_host_, count, nll + at);
  }
  return absl::OkStatus();
}

}  // namespace moert::host
