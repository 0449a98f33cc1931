// Quantizes one expert to a record: from its weights, and from its inputs if there are any.
#ifndef MOERT_LIB_OFFLINE_EXPERT_QUANTIZER_H_
#define MOERT_LIB_OFFLINE_EXPERT_QUANTIZER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/checkpoint_experts.h"
#include "moert/model.h"
#include "moert/offline/encode_matrix.h"
#include "moert/offline/quantize.h"
#include "moert/scheme.h"
#include "moert/thread_pool.h"
#include "offline/calibration_stream.h"
#include "offline/expert_mlp.h"
#include "offline/gptq.h"
#include "offline/offline_device.h"
#include "quant/quantized_matrix.h"

namespace moert::offline {

/// With fewer tokens than this, the moments of k inputs are unreliable: HQQ, which needs none, is
/// better then (docs/results/quantization.md).
constexpr int64_t MinimumTokens(int64_t k) { return k / 4 > 512 ? k / 4 : 512; }

/// Factors the moments of inputs x [rows, k]. FailedPrecondition if they are too few.
absl::StatusOr<GptqFactor> FactorInputs(absl::Span<const float> x, int64_t k,
                                        absl::Span<const float> token_weights);

/// The same for the inputs of a block on a device, which rounds with this factor from now on. An
/// error is the device's.
absl::Status FactorOnDevice(DeviceExpert* expert, bool down, int64_t k, int64_t rows,
                            absl::StatusOr<GptqFactor>* factor);

/// Quantizes one matrix: by GPTQ with a factor, by HQQ instead without one. `device` may be null.
QuantizedMatrix QuantizeMatrix(const MatrixLayout& layout, QuantMethod method,
                               const absl::StatusOr<GptqFactor>& factor,
                               absl::Span<const float> weights, OfflineDevice* device);

/// The result of GPTQ for an expert.
struct GptqOutcome {
  int64_t tokens = 0;
  int gptq_matrices = 0;
  int fallback_matrices = 0;
};

/// GPTQ with the moments of the given inputs, each token weighted by its router weight; HQQ if the
/// tokens are too few or the moments cannot be factored. Down's inputs come from the quantized gate
/// and up, and are rounded if the schemes round activations. x: the expert's tokens [rows, hidden],
/// overwritten.
/// The pool of `compute` has a single thread: the caller is a job of another pool. `device`
/// searches for scales and rounds, with the same outcome; it may be null.
absl::StatusOr<GptqOutcome> EncodeExpertGptq(const MoeLayerSpec& layer, const RecordLayout& layout,
                                             ExpertMatrices weights, Floats* x,
                                             absl::Span<const float> token_weights,
                                             const Compute& compute, OfflineDevice* device,
                                             std::byte* record);

/// The outputs [rows, hidden] of a record's expert for x [rows, hidden], which is overwritten.
/// Activations are rounded if the schemes round them. `device`, if any, is used if nothing is
/// rounded or rotated.
absl::StatusOr<Floats> ForwardRecord(const MoeLayerSpec& layer, const RecordLayout& layout,
                                     const std::byte* record, Floats* x, int64_t rows,
                                     const Compute& compute, OfflineDevice* device = nullptr);

/// EncodeExpertGptq, which also turns x into the outputs of the record's expert. On `device` if
/// nothing but weights is rounded or rotated: all products and moments are computed there, with the
/// same outcome except for rounding.
absl::StatusOr<GptqOutcome> PassExpertGptq(const MoeLayerSpec& layer, const RecordLayout& layout,
                                           const ExpertMatrices& weights,
                                           absl::Span<const float> token_weights,
                                           const Compute& compute, OfflineDevice* device,
                                           std::byte* record, Floats* x);

/// Like EncodeMatrix, to the same bytes, with the help of a device, which may be null. Throws
/// std::bad_alloc.
absl::Status EncodeMatrixOn(OfflineDevice* device, const MatrixLayout& layout, QuantMethod method,
                            absl::Span<const float> weights, std::byte* record);

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_EXPERT_QUANTIZER_H_
