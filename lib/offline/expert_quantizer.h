// Quantizing one expert: from its weights, and from the inputs it sees if there are any, to a
// record.
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

/// Fewer tokens than this say too little about the moments of k inputs: HQQ, which needs none, is
/// better then (docs/results/quantization.md).
constexpr int64_t MinimumTokens(int64_t k) { return k / 4 > 512 ? k / 4 : 512; }

/// Factors the moments of inputs x [rows, k]. FailedPrecondition if they are too few.
absl::StatusOr<GptqFactor> FactorInputs(absl::Span<const float> x, int64_t k,
                                        absl::Span<const float> token_weights);

/// The same of the inputs of a block on a device, which rounds by it from here on. An error is the
/// device's.
absl::Status FactorOnDevice(DeviceExpert* expert, bool down, int64_t k, int64_t rows,
                            absl::StatusOr<GptqFactor>* factor);

/// One matrix by a method: GPTQ with a factor, HQQ in its place without. `device` may be null.
QuantizedMatrix QuantizeMatrix(const MatrixLayout& layout, QuantMethod method,
                               const absl::StatusOr<GptqFactor>& factor,
                               absl::Span<const float> weights, OfflineDevice* device);

/// The result of GPTQ for an expert.
struct GptqOutcome {
  int64_t tokens = 0;
  int gptq_matrices = 0;
  int fallback_matrices = 0;
};

/// GPTQ with the moments of the inputs it is given, each token weighted by its router weight; where
/// they are too few, or cannot be factored, HQQ. Down sees what the quantized gate and up make of
/// the inputs, rounded where the schemes round activations. x: the expert's tokens [rows, hidden],
/// overwritten.
/// The pool of `compute` has a single thread: the caller is a job of another. `device` searches for
/// scales and rounds, to the same outcome; it may be null.
absl::StatusOr<GptqOutcome> EncodeExpertGptq(const MoeLayerSpec& layer, const RecordLayout& layout,
                                             ExpertMatrices weights, Floats* x,
                                             absl::Span<const float> token_weights,
                                             const Compute& compute, OfflineDevice* device,
                                             std::byte* record);

/// The outputs [rows, hidden] of a record's expert for x [rows, hidden], which is overwritten.
/// Activations are rounded where the schemes round them. `device`, if any, multiplies where nothing
/// is rounded or rotated.
absl::StatusOr<Floats> ForwardRecord(const MoeLayerSpec& layer, const RecordLayout& layout,
                                     const std::byte* record, Floats* x, int64_t rows,
                                     const Compute& compute, OfflineDevice* device = nullptr);

/// EncodeExpertGptq, and x becomes what the record's expert makes of it. On `device` where nothing
/// is rounded or rotated besides weights: all products and moments are there, to the same outcome
/// but for rounding.
absl::StatusOr<GptqOutcome> PassExpertGptq(const MoeLayerSpec& layer, const RecordLayout& layout,
                                           const ExpertMatrices& weights,
                                           absl::Span<const float> token_weights,
                                           const Compute& compute, OfflineDevice* device,
                                           std::byte* record, Floats* x);

/// As EncodeMatrix, to the same bytes, with a device's help; it may be null. Throws std::bad_alloc.
absl::Status EncodeMatrixOn(OfflineDevice* device, const MatrixLayout& layout, QuantMethod method,
                            absl::Span<const float> weights, std::byte* record);

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_EXPERT_QUANTIZER_H_
