// Scores a token sequence: negative log-likelihood over non-overlapping windows.
#ifndef MOERT_EXAMPLES_HOST_PERPLEXITY_H_
#define MOERT_EXAMPLES_HOST_PERPLEXITY_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/token_model.h"

namespace moert::host {

struct PerplexityOptions {
  /// Tokens per window. Windows are independent sequences, taken from the first token on; a shorter
  /// rest is not used. Tokens 1..window-1 of each are scored given the tokens before them.
  int64_t window = 512;
  /// 0: a window is one prefill step (cut into equal steps only if the model allows no more rows).
  /// N: teacher-forced decode, N tokens of each sequence per step.
  int64_t step_tokens = 0;
  /// Windows that decode side by side. Only with step_tokens.
  int64_t batch = 1;
  /// Called after every window (with a batch: after all of it) with the tokens done and to do.
  std::function<void(int64_t done, int64_t total)> progress;
};

struct PerplexityResult {
  double nll = 0.0;  // mean of -ln p over the scored tokens
  double ppl = 0.0;  // exp(nll)
  int64_t tokens_scored = 0;
  std::vector<double> step_ms;     // by step, in the model's clock
  std::vector<double> window_nll;  // mean over each window's scored tokens
};

absl::StatusOr<PerplexityResult> Perplexity(TokenModel* model, absl::Span<const int32_t> tokens,
                                            const PerplexityOptions& options);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_PERPLEXITY_H_
