#include "offline/expert_quantizer.h"

#include <fmt/format.h>

#include "base/status_macros.h"
#include "offline/activation_rounding.h"
#include "offline/encode_matrix_on.h"
#include "offline/hqq.h"
#include "offline/rtn.h"
#include "quant/hadamard.h"
#include "quant/packing.h"

namespace moert::offline {
namespace {

/// One matrix of an expert by GPTQ, or by HQQ without a factor.
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

/// h = act(gate x) * (up x), x as each of both rounds it.
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

}  // namespace

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
                                     const Compute& compute) {
  ExpertMatrices weights;
  MOERT_RETURN_IF_ERROR(UnpackExpert(layout, record, &weights));
  if (layout.format.hadamard) ApplyHadamard(rows, layer.hidden, x->data());
  Floats h = RoundedGlu(layer, layout, weights, x, rows, compute);
  if (layout.format.hadamard) ApplyHadamard(rows, layer.intermediate, h.data());
  RoundActivations(layout.down.scheme, layer.intermediate, &h);
  Floats y(static_cast<size_t>(rows * layer.hidden));
  MatMul(compute, weights.down, layer.hidden, layer.intermediate, h.data(), rows, y.data());
  return y;
}

}  // namespace moert::offline
