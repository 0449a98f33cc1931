#include "offline/expert_quantizer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "offline/expert_mlp.h"
#include "offline/hqq.h"
#include "offline/moe_block.h"
#include "offline/rtn.h"
#include "quant/hadamard.h"
#include "quant/packing.h"

namespace moert::offline {
namespace {

/// Encodes one matrix of an expert by GPTQ, or by HQQ without a factor.
absl::Status Encode(const MatrixLayout& layout, const absl::StatusOr<GptqFactor>& factor,
                    const std::vector<float>& weights, OfflineDevice* device, std::byte* record,
                    GptqOutcome* outcome) {
  if (layout.scheme.is_bf16()) return PackMatrixBf16(layout, weights, record);
  if (factor.ok() && layout.scheme.scales != ScaleType::kE4M3) {
    const absl::StatusOr<QuantizedMatrix> q = QuantizeGptq(layout, weights, *factor, {}, device);
    if (q.ok()) {
      ++outcome->gptq_matrices;
      return PackMatrix(layout, *q, record);
    }
  }
  ++outcome->fallback_matrices;
  return EncodeMatrixOn(device, layout, QuantMethod::kHqq, weights, record);
}

/// h = act(gate x) * (up x), with x rounded as each of the two schemes requires.
Floats RoundedGlu(const MoeLayerSpec& layer, const RecordLayout& layout,
                  const ExpertMatrices& weights, Floats* x, int64_t rows, const Compute& compute) {
  if (layout.gate.scheme == layout.up.scheme) {
    RoundActivations(layout.gate.scheme, layer.hidden, x);
    return GluForward(compute, layer, weights.gate, weights.up, x->data(), rows);
  }
  Floats up_x = *x, h(static_cast<size_t>(rows * layer.intermediate)), up(h.size());
  RoundActivations(layout.gate.scheme, layer.hidden, x);
  RoundActivations(layout.up.scheme, layer.hidden, &up_x);
  MatMul(compute, weights.gate, layer.intermediate, layer.hidden, x->data(), rows, h.data());
  MatMul(compute, weights.up, layer.intermediate, layer.hidden, up_x.data(), rows, up.data());
  for (size_t i = 0; i < h.size(); ++i) h[i] = Activate(layer.activation, h[i], up[i]);
  return h;
}

/// Whether the expert's inputs enter its products unchanged.
bool PlainInputs(const RecordLayout& layout) {
  return !layout.format.hadamard && !RoundsActivations(layout.gate.scheme) &&
         !RoundsActivations(layout.up.scheme) && !RoundsActivations(layout.down.scheme);
}

/// Like Encode, for a block whose factor is on the device, which then uses the record's weights.
absl::Status EncodeBlock(DeviceExpert* expert, Projection block, const MatrixLayout& layout,
                         const absl::StatusOr<GptqFactor>& factor,
                         const std::vector<float>& weights, OfflineDevice* device,
                         std::byte* record, GptqOutcome* outcome) {
  bool encoded = false;
  if (!layout.scheme.is_bf16() && factor.ok() && expert->CanRound(layout)) {
    MOERT_ASSIGN_OR_RETURN(const QuantizedMatrix q, expert->RoundByGptq(block, layout));
    encoded = HasFiniteScales(q);
    if (encoded) {
      ++outcome->gptq_matrices;
      MOERT_RETURN_IF_ERROR(PackMatrix(layout, q, record));
    }
  }
  if (!encoded) MOERT_RETURN_IF_ERROR(Encode(layout, factor, weights, device, record, outcome));
  std::vector<float> stored;
  MOERT_RETURN_IF_ERROR(UnpackMatrix(layout, record, &stored));
  return expert->SetWeights(block, stored);
}

/// PassExpertGptq on the device.
absl::StatusOr<GptqOutcome> PassOnDevice(const MoeLayerSpec& layer, const RecordLayout& layout,
                                         const ExpertMatrices& weights,
                                         absl::Span<const float> token_weights,
                                         OfflineDevice* device, DeviceExpert* expert,
                                         std::byte* record, Floats* x) {
  GptqOutcome outcome;
  outcome.tokens = static_cast<int64_t>(token_weights.size());
  absl::StatusOr<GptqFactor> factor = absl::UnknownError("not factored");
  const auto encode = [&](Projection block, const MatrixLayout& matrix,
                          const std::vector<float>& w) {
    return EncodeBlock(expert, block, matrix, factor, w, device, record, &outcome);
  };
  MOERT_RETURN_IF_ERROR(expert->Load(weights, x->data()));
  MOERT_RETURN_IF_ERROR(expert->PrepareChanges(token_weights));
  MOERT_RETURN_IF_ERROR(
      FactorOnDevice(expert, /*down=*/false, layer.hidden, outcome.tokens, &factor));
  MOERT_RETURN_IF_ERROR(encode(Projection::kGate, layout.gate, weights.gate));
  MOERT_RETURN_IF_ERROR(encode(Projection::kUp, layout.up, weights.up));
  MOERT_RETURN_IF_ERROR(expert->RunGateUp());
  MOERT_RETURN_IF_ERROR(
      FactorOnDevice(expert, /*down=*/true, layer.intermediate, outcome.tokens, &factor));
  MOERT_RETURN_IF_ERROR(encode(Projection::kDown, layout.down, weights.down));
  MOERT_RETURN_IF_ERROR(expert->RunDown());
  Floats y(x->size());
  MOERT_RETURN_IF_ERROR(expert->Outputs(y.data()));
  x->swap(y);
  return outcome;
}

}  // namespace

absl::Status FactorOnDevice(DeviceExpert* expert, bool down, int64_t k, int64_t rows,
                            absl::StatusOr<GptqFactor>* factor) {
  *factor = absl::FailedPreconditionError("too few tokens");
  if (rows < MinimumTokens(k)) return absl::OkStatus();
  MOERT_ASSIGN_OR_RETURN(const InputMoments moments, expert->Moments(down));
  *factor = FactorMoments(moments, GptqOptions());
  return factor->ok() ? expert->SetFactor(down, **factor) : absl::OkStatus();
}

absl::StatusOr<GptqFactor> FactorInputs(absl::Span<const float> x, int64_t k,
                                        absl::Span<const float> token_weights) {
  if (static_cast<int64_t>(token_weights.size()) < MinimumTokens(k)) {
    return absl::FailedPreconditionError("too few tokens");
  }
  InputMoments moments(k);
  MOERT_RETURN_IF_ERROR(moments.Add(x, token_weights));
  return FactorMoments(moments, GptqOptions());
}

QuantizedMatrix QuantizeMatrix(const MatrixLayout& layout, QuantMethod method,
                               const absl::StatusOr<GptqFactor>& factor,
                               absl::Span<const float> weights, OfflineDevice* device) {
  if (method == QuantMethod::kRtn) return QuantizeRtn(layout, weights, {}, device);
  if (method == QuantMethod::kGptq && factor.ok() && layout.scheme.scales != ScaleType::kE4M3) {
    absl::StatusOr<QuantizedMatrix> q = QuantizeGptq(layout, weights, *factor, {}, device);
    if (q.ok()) return *std::move(q);
  }
  return QuantizeHqq(layout, weights, {}, device);
}

absl::StatusOr<GptqOutcome> EncodeExpertGptq(const MoeLayerSpec& layer, const RecordLayout& layout,
                                             ExpertMatrices weights, Floats* x,
                                             absl::Span<const float> token_weights,
                                             const Compute& compute, OfflineDevice* device,
                                             std::byte* record) {
  const int64_t rows = static_cast<int64_t>(token_weights.size());
  if (layout.format.hadamard) {
    ApplyHadamard(layer.intermediate, layer.hidden, weights.gate.data());
    ApplyHadamard(layer.intermediate, layer.hidden, weights.up.data());
    ApplyHadamard(layer.hidden, layer.intermediate, weights.down.data());
    ApplyHadamard(rows, layer.hidden, x->data());
  }
  GptqOutcome outcome;
  outcome.tokens = rows;
  const auto inputs = FactorInputs(*x, layer.hidden, token_weights);
  MOERT_RETURN_IF_ERROR(Encode(layout.gate, inputs, weights.gate, device, record, &outcome));
  MOERT_RETURN_IF_ERROR(Encode(layout.up, inputs, weights.up, device, record, &outcome));
  MOERT_RETURN_IF_ERROR(UnpackMatrix(layout.gate, record, &weights.gate));
  MOERT_RETURN_IF_ERROR(UnpackMatrix(layout.up, record, &weights.up));
  Floats h = RoundedGlu(layer, layout, weights, x, rows, compute);
  if (layout.format.hadamard) ApplyHadamard(rows, layer.intermediate, h.data());
  MOERT_RETURN_IF_ERROR(Encode(layout.down, FactorInputs(h, layer.intermediate, token_weights),
                               weights.down, device, record, &outcome));
  return outcome;
}

absl::StatusOr<Floats> ForwardRecord(const MoeLayerSpec& layer, const RecordLayout& layout,
                                     const std::byte* record, Floats* x, int64_t rows,
                                     const Compute& compute, OfflineDevice* device) {
  ExpertMatrices weights;
  MOERT_RETURN_IF_ERROR(UnpackExpert(layout, record, &weights));
  if (device != nullptr && PlainInputs(layout)) {
    MOERT_RETURN_IF_ERROR(ForwardExpert(layer, weights, compute, device, x));
    return std::move(*x);
  }
  if (layout.format.hadamard) ApplyHadamard(rows, layer.hidden, x->data());
  Floats h = RoundedGlu(layer, layout, weights, x, rows, compute);
  if (layout.format.hadamard) ApplyHadamard(rows, layer.intermediate, h.data());
  RoundActivations(layout.down.scheme, layer.intermediate, &h);
  Floats y(rows * layer.hidden);
  MatMul(compute, weights.down, layer.hidden, layer.intermediate, h.data(), rows, y.data());
  return y;
}

absl::StatusOr<GptqOutcome> PassExpertGptq(const MoeLayerSpec& layer, const RecordLayout& layout,
                                           const ExpertMatrices& weights,
                                           absl::Span<const float> token_weights,
                                           const Compute& compute, OfflineDevice* device,
                                           std::byte* record, Floats* x) {
  const auto rows = static_cast<int64_t>(token_weights.size());
  if (device != nullptr && PlainInputs(layout)) {
    if (const std::unique_ptr<DeviceExpert> expert = device->Expert(layer, rows)) {
      auto outcome =
          PassOnDevice(layer, layout, weights, token_weights, device, expert.get(), record, x);
      if (outcome.ok()) return outcome;
      std::fill_n(record, layout.bytes, std::byte{0});
    }
  }
  Floats inputs = *x;
  MOERT_ASSIGN_OR_RETURN(
      const GptqOutcome outcome,
      EncodeExpertGptq(layer, layout, weights, &inputs, token_weights, compute, device, record));
  MOERT_ASSIGN_OR_RETURN(*x, ForwardRecord(layer, layout, record, x, rows, compute, device));
  return outcome;
}

}  // namespace moert::offline
