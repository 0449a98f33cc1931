#include "examples/host/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/status_macros.h"
#include "examples/host/sampling.h"

namespace moert::host {
namespace {

// -ln p(targets[i] | hidden row i), rows in blocks so that the logits of a long window and a large
// vocabulary need not be in memory at once.
void Score(Decoder* decoder, const float* hidden, absl::Span<const int32_t> targets, double* nll) {
  const int64_t vocab = decoder->config().vocab_size, width = decoder->config().hidden_size;
  const int64_t rows = static_cast<int64_t>(targets.size());
  const int64_t block = std::clamp<int64_t>((int64_t{1} << 22) / vocab, 8, 512);
  AlignedVector<float> logits(std::min(rows, block) * vocab);
  for (int64_t first = 0; first < rows; first += block) {
    const int64_t count = std::min(block, rows - first);
    decoder->Logits(hidden + first * width, count, logits.data());
    decoder->pool()->Run(count, [&](int64_t i, int) {
      const float* row = logits.data() + i * vocab;
      nll[first + i] = LogSumExp({row, static_cast<size_t>(vocab)}) - row[targets[first + i]];
    });
  }
}

// The windows [first, first + count) of `tokens`, side by side, `step_tokens` of each a step. Their
// scores go to nll: [count, window - 1].
absl::Status ScoreWindows(Decoder* decoder, absl::Span<const int32_t> tokens, int64_t first,
                          int64_t count, StepPhase phase, int64_t step_tokens, int64_t window,
                          std::vector<double>* nll, PerplexityResult* result) {
  std::vector<std::unique_ptr<KvCache>> caches;
  for (int64_t i = 0; i < count; ++i) {
    caches.push_back(std::make_unique<KvCache>(decoder->config(), window));
  }
  nll->assign(count * (window - 1), 0.0);
  AlignedVector<float> hidden;
  for (int64_t at = 0; at < window; at += step_tokens) {
    const int64_t n = std::min(step_tokens, window - at);
    std::vector<SequenceInput> inputs;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = (first + i) * window + at;
      inputs.push_back({caches[i].get(), first + i, tokens.subspan(begin, n)});
    }
    const double begin_ms = decoder->moe()->NowMs();
    MOERT_RETURN_IF_ERROR(decoder->Step(phase, inputs, &hidden));
    result->step_ms.push_back(decoder->moe()->NowMs() - begin_ms);
    // A window's last token predicts nothing that counts.
    const int64_t scored = std::min(n, window - 1 - at);
    for (int64_t i = 0; i < count && scored > 0; ++i) {
      Score(decoder, hidden.data() + i * n * decoder->config().hidden_size,
            tokens.subspan((first + i) * window + at + 1, scored),
            nll->data() + i * (window - 1) + at);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PerplexityResult> Perplexity(Decoder* decoder, absl::Span<const int32_t> tokens,
                                            const PerplexityOptions& options) {
  const int64_t window = options.window;
  const int64_t windows = window >= 2 ? static_cast<int64_t>(tokens.size()) / window : 0;
  if (window < 2 || window > decoder->config().max_position_embeddings) {
    return absl::InvalidArgumentError(fmt::format("window {}: the model allows 2..{}", window,
                                                  decoder->config().max_position_embeddings));
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
  const int64_t max_rows = decoder->moe()->max_rows();
  const int64_t batch = decode ? std::min(options.batch, windows) : 1;
  const int64_t steps = (window + max_rows - 1) / max_rows;
  const int64_t step_tokens =
      decode ? std::min(options.step_tokens, window) : (window + steps - 1) / steps;

  PerplexityResult result;
  std::vector<double> nll;
  for (int64_t first = 0; first < windows; first += batch) {
    const int64_t count = std::min(batch, windows - first);
    MOERT_RETURN_IF_ERROR(ScoreWindows(decoder, tokens, first, count,
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
