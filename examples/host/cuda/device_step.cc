// Enqueues a step of the decoder: few rows run products fused with norms and the residual stream,
// many rows run each on its own.
#include <utility>

#include "host/cuda/device_decoder.h"
#include "host/cuda/few_rows_kernel.h"
#include "host/cuda/norm_kernel.h"
#include "host/cuda/token_kernels.h"
#include "util/status_macros.h"

namespace moert::host {

absl::Status DeviceDecoder::EnqueueStep(const StepShape& shape, StepId step) {
  const auto rows = static_cast<int>(shape.rows);
  Stream stream{residual_, spare_};
  RETURN_IF_CUDA_ERROR(LaunchEmbed(upload_.inputs(shape).rows, weights_.embedding.weights(), rows,
                                   static_cast<int>(config_.hidden_size), residual_, stream_));
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    MOERT_RETURN_IF_ERROR(EnqueueLayer(static_cast<int>(i), shape, step, &stream));
  }
  if (!WithLogits(shape)) return Normalize(weights_.final_norm, shape, stream, nullptr, hidden_);
  const auto vocabulary = static_cast<int>(config_.vocab_size);
  MOERT_RETURN_IF_ERROR(
      NormedProduct(weights_.final_norm, weights_.output(), shape, &stream, hidden_, logits_));
  if (const float* bias = weights_.output().bias()) {
    RETURN_IF_CUDA_ERROR(LaunchAddBias(logits_, bias, rows, vocabulary, stream_));
  }
  RETURN_IF_CUDA_ERROR(LaunchBest(logits_, rows, vocabulary, best_scratch(), best_, stream_));
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(best_on_host_, best_,
                                       static_cast<size_t>(shape.rows) * sizeof(int32_t),
                                       cudaMemcpyDeviceToHost, stream_));
  return absl::OkStatus();
}

absl::Status DeviceDecoder::EnqueueLayer(int index, const StepShape& shape, StepId step,
                                         Stream* stream) {
  const DeviceLayer& layer = weights_.layers[index];
  MOERT_RETURN_IF_ERROR(NormedProduct(layer.mixer_norm, layer.mixer.in, shape, stream, rounded_,
                                      mixers_.projected()));
  MOERT_RETURN_IF_ERROR(mixers_.Enqueue(index, upload_.inputs(shape), shape));
  const bool moe = layer.moe_layer >= 0;
  MOERT_RETURN_IF_ERROR(
      AddProduct(layer.mixer.out, mixers_.mixed(), shape, stream, moe ? &layer.mlp_norm : nullptr));
  if (moe) {
    // In fp32: a gate's close decisions should not depend on how its input was rounded.
    stream->delta = delta_;
    const int64_t hidden = config_.hidden_size;
    return engine_->Forward(step, layer.moe_layer,
                            {normed_, DType::kF32, shape.rows, hidden, hidden},
                            {delta_, DType::kF32, shape.rows, hidden, hidden});
  }
  MOERT_RETURN_IF_ERROR(
      NormedProduct(layer.mlp_norm, layer.gate_up, shape, stream, rounded_, gate_up_));
  RETURN_IF_CUDA_ERROR(LaunchGatedActivation(
      gate_up_, static_cast<int>(config_.activation.function), static_cast<int>(shape.rows),
      static_cast<int>(config_.dense_intermediate), activated_, stream_));
  return AddProduct(layer.down, activated_, shape, stream, nullptr);
}

absl::Status DeviceDecoder::NormedProduct(const DeviceNorm& norm, const DeviceMatrix& w,
                                          const StepShape& shape, Stream* stream, uint16_t* rounded,
                                          float* y) {
  const bool layer_norm = Floats(norm.bias) != nullptr;
  if (layer_norm || !products_->TakesFew(shape.rows, w.in())) {
    MOERT_RETURN_IF_ERROR(Normalize(norm, shape, *stream, nullptr, rounded));
    stream->delta = nullptr;
    return products_->Multiply(w, rounded, shape.rows, y);
  }
  FewRowsProduct product = w.FewRows(shape.rows, y);
  product.normed.residual = stream->residual;
  product.normed.delta = stream->delta;
  product.normed.sum = stream->spare;
  product.normed.weight = Floats(norm.weight);
  product.normed.eps = static_cast<float>(config_.norm_eps);
  RETURN_IF_CUDA_ERROR(LaunchFewRows(product, stream_));
  if (stream->delta != nullptr) std::swap(stream->residual, stream->spare);
  stream->delta = nullptr;
  return absl::OkStatus();
}

absl::Status DeviceDecoder::AddProduct(const DeviceMatrix& w, const uint16_t* x,
                                       const StepShape& shape, Stream* stream,
                                       const DeviceNorm* then) {
  const auto normalize = [&] {
    if (then == nullptr) return absl::OkStatus();
    return Normalize(*then, shape, *stream, normed_, nullptr);
  };
  if (!products_->TakesFew(shape.rows, w.in())) {
    MOERT_RETURN_IF_ERROR(
        products_->Multiply(w, x, shape.rows, stream->residual, /*accumulate=*/true));
    if (w.bias() != nullptr) {
      RETURN_IF_CUDA_ERROR(LaunchAddBias(stream->residual, w.bias(), static_cast<int>(shape.rows),
                                         static_cast<int>(w.out()), stream_));
    }
    return normalize();
  }
  FewRowsProduct product = w.FewRows(shape.rows, stream->residual);
  product.x = x;
  product.bias = w.bias();
  product.accumulate = true;
  const bool fused = then != nullptr && shape.rows == 1;
  if (fused) {
    product.ticket = ticket();
    product.then = NormOf(*then, shape, *stream);
    product.then.f32 = normed_;
  }
  RETURN_IF_CUDA_ERROR(LaunchFewRows(product, stream_));
  return fused ? absl::OkStatus() : normalize();
}

NormArgs DeviceDecoder::NormOf(const DeviceNorm& norm, const StepShape& shape,
                               const Stream& stream) const {
  NormArgs args;
  args.residual = stream.residual;
  args.delta = stream.delta;
  args.weight = Floats(norm.weight);
  args.bias = Floats(norm.bias);
  args.eps = static_cast<float>(config_.norm_eps);
  args.rows = static_cast<int32_t>(shape.rows);
  args.width = static_cast<int32_t>(config_.hidden_size);
  return args;
}

absl::Status DeviceDecoder::Normalize(const DeviceNorm& norm, const StepShape& shape,
                                      const Stream& stream, float* f32, uint16_t* bf16) {
  NormArgs args = NormOf(norm, shape, stream);
  args.f32 = f32;
  args.bf16 = bf16;
  RETURN_IF_CUDA_ERROR(LaunchNorm(args, stream_));
  return absl::OkStatus();
}

}  // namespace moert::host
