#include "host/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "util/status_macros.h"

namespace moert::host {
namespace {

// Scores the windows [first, first + count) of `tokens` side by side, `step_tokens` of each per
// step. nll: [count, window - 1].
absl::Status ScoreWindows(TokenModel* model, absl::Span<const int32_t> tokens, int64_t first,
                          int64_t count, StepPhase phase, int64_t step_tokens, int64_t window,
                          std::vector<double>* nll, PerplexityResult* result) {
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int64_t i = 0; i < count; ++i) {
    MOERT_ASSIGN_OR_RETURN(auto sequence, model->NewSequence(window));
    sequences.push_back(std::move(sequence));
  }
  nll->assign(count * (window - 1), 0.0);
  for (int64_t at = 0; at < window; at += step_tokens) {
    const int64_t n = std::min(step_tokens, window - at);
    std::vector<SequenceInput> inputs;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = (first + i) * window + at;
      inputs.push_back({sequences[i].get(), first + i, tokens.subspan(begin, n)});
    }
    const double begin_ms = model->NowMs();
    MOERT_RETURN_IF_ERROR(model->Run(phase, inputs));
    MOERT_RETURN_IF_ERROR(model->Wait());
    result->step_ms.push_back(model->NowMs() - begin_ms);
    // A window's last token predicts nothing that counts.
    const int64_t scored = std::min(n, window - 1 - at);
    for (int64_t i = 0; i < count && scored > 0; ++i) {
      MOERT_RETURN_IF_ERROR(model->Score(i * n,
                                         tokens.subspan((first + i) * window + at + 1, scored),
                                         nll->data() + i * (window - 1) + at));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PerplexityResult> Perplexity(TokenModel* model, absl::Span<const int32_t> tokens,
                                            const PerplexityOptions& options) {
  const int64_t window = options.window;
  const int64_t windows = window >= 2 ? static_cast<int64_t>(tokens.size()) / window : 0;
  if (window < 2 || window > model->config().max_position_embeddings) {
    return absl::InvalidArgumentError(fmt::format("window {}: the model allows 2..{}", window,
                                                  model->config().max_position_embeddings));
  }
  if (windows < 1) {
    return absl::InvalidArgumentError(
        fmt::format("{} tokens are fewer than one window of {}", tokens.size(), window));
  }
  if (options.step_tokens < 0 || options.batch < 1) {
    return absl::InvalidArgumentError(fmt::format("step tokens {} and batch {}: at least 0 and 1",
                                                  options.step_tokens, options.batch));
  }
  const bool decode = options.step_tokens > 0;
  const int64_t max_rows = model->max_rows();
  const int64_t batch = decode ? std::min(options.batch, windows) : 1;
  const int64_t steps = (window + max_rows - 1) / max_rows;
  const int64_t step_tokens =
      decode ? std::min(options.step_tokens, window) : (window + steps - 1) / steps;

  PerplexityResult result;
  std::vector<double> nll;
  for (int64_t first = 0; first < windows; first += batch) {
    const int64_t count = std::min(batch, windows - first);
    MOERT_RETURN_IF_ERROR(ScoreWindows(model, tokens, first, count,
                                       decode ? StepPhase::kDecode : StepPhase::kPrefill,
                                       step_tokens, window, &nll, &result));
    for (int64_t i = 0; i < count; ++i) {
      double sum = 0.0;
      for (int64_t t = 0; t < window - 1; ++t) sum += nll[i * (window - 1) + t];
      result.window_nll.push_back(sum / static_cast<double>(window - 1));
    }
    if (options.progress) options.progress((first + count) * window, windows * window);
  }
  double sum = 0.0;
  for (const double w : result.window_nll) sum += w;
  result.tokens_scored = windows * (window - 1);
  result.nll = sum / static_cast<double>(windows);  // all windows score equally many tokens
  result.ppl = std::exp(result.nll);
  if (!std::isfinite(result.nll)) {
    return absl::InternalError("the model's logits are not finite");
  }
  return result;
}

}  // namespace moert::host
