// Continues a prompt.
#ifndef MOERT_EXAMPLES_HOST_GENERATE_H_
#define MOERT_EXAMPLES_HOST_GENERATE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/sampling.h"
#include "host/token_model.h"

namespace moert::host {

struct GenerateOptions : SamplingOptions {
  int64_t max_tokens = 64;
  /// Generation ends at one of these tokens, which is not part of the result.
  std::vector<int32_t> stop_tokens;
  /// Called with every token as it comes; returning an error ends the generation with it.
  std::function<absl::Status(int32_t token)> on_token;
  /// Called after on_token; true ends the generation as a stop token does. May be null.
  std::function<bool()> stop;
  /// Called after each prefill step with the prompt tokens computed and to compute. May be null.
  std::function<void(int64_t done, int64_t total)> progress;
};

struct GenerateResult {
  std::vector<int32_t> tokens;
  double ttft_ms = 0.0;         // begin of prefill to the first token, in the model's clock
  std::vector<double> step_ms;  // decode steps
};

/// The prompt is prefilled in as few steps as the model allows, then decoded token by token.
absl::StatusOr<GenerateResult> Generate(TokenModel* model, absl::Span<const int32_t> prompt,
                                        const GenerateOptions& options);

/// Generates on a sequence that outlives the call. The tokens that it already holds, which are the
/// first of `prompt`, are not computed again. It must have room for the prompt and max_tokens.
absl::StatusOr<GenerateResult> Generate(TokenModel* model, Sequence* sequence,
                                        absl::Span<const int32_t> prompt,
                                        const GenerateOptions& options);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_GENERATE_H_
