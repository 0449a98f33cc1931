// Quantizing one expert: from its weights, and from the inputs it sees if there are any, to a
// record.
#ifndef MOERT_EXAMPLES_CLI_PACK_EXPERT_QUANTIZER_H_
#define MOERT_EXAMPLES_CLI_PACK_EXPERT_QUANTIZER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint_experts.h"
#include "examples/cli/pack/calibration_stream.h"
#include "examples/cli/pack/expert_mlp.h"
#include "moert/model.h"
#include "moert/scheme.h"
#include "offline/gptq.h"
#include "quant/quantized_matrix.h"

namespace moert::cli {

enum class QuantMethod { kRtn, kHqq, kGptq };
absl::StatusOr<QuantMethod> ParseMethod(const std::string& name);

/// Fewer tokens than this say too little about the moments of k inputs: HQQ, which needs none, is
/// better then (docs/results/quantization.md).
constexpr int64_t MinimumTokens(int64_t k) { return k / 4 > 512 ? k / 4 : 512; }

/// RTN or HQQ. weights: row-major [rows, k], finite.
absl::Status EncodeMatrix(const MatrixLayout& layout, QuantMethod method,
                          absl::Span<const float> weights, std::byte* record);

/// Factors the moments of inputs x [rows, k]. FailedPrecondition if they are too few.
absl::StatusOr<GptqFactor> FactorInputs(absl::Span<const float> x, int64_t k,
                                        absl::Span<const float> token_weights);

/// One matrix by a method: GPTQ with a factor, HQQ in its place without.
QuantizedMatrix QuantizeMatrix(const MatrixLayout& layout, QuantMethod method,
                               const absl::StatusOr<GptqFactor>& factor,
                               absl::Span<const float> weights);

/// What GPTQ did with an expert.
struct GptqOutcome {
  int64_t tokens = 0;
  int gptq_matrices = 0;
  int fallback_matrices = 0;
};

/// GPTQ with the moments of the inputs it is given, each token weighted by its router weight; where
/// they are too few, or cannot be factored, HQQ. Down sees what the quantized gate and up make of
/// the inputs, rounded where the schemes round activations. x: the expert's tokens [rows, hidden],
/// overwritten.
/// `pool` has a single thread: the caller is a job of another.
absl::StatusOr<GptqOutcome> EncodeExpertGptq(const MoeLayerSpec& layer, const RecordLayout& layout,
                                             ExpertMatrices weights, Floats* x,
                                             absl::Span<const float> token_weights,
                                             ThreadPool* pool, std::byte* record);

/// What the expert of a record makes of x [rows, hidden], which is overwritten: [rows, hidden].
/// Activations are rounded where the schemes round them.
absl::StatusOr<Floats> ForwardRecord(const MoeLayerSpec& layer, const RecordLayout& layout,
                                     const std::byte* record, Floats* x, int64_t rows,
                                     ThreadPool* pool);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_PACK_EXPERT_QUANTIZER_H_
