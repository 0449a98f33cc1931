#include "examples/host/generate.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/status_macros.h"
#include "examples/host/sampling.h"

namespace moert::host {

absl::StatusOr<GenerateResult> Generate(Decoder* decoder, absl::Span<const int32_t> prompt,
                                        const GenerateOptions& options) {
  const HfConfig& config = decoder->config();
  const int64_t prompt_size = static_cast<int64_t>(prompt.size());
  if (prompt_size == 0) return absl::InvalidArgumentError("the prompt is empty");
  if (options.max_tokens < 1 || options.max_tokens > config.max_position_embeddings - prompt_size) {
    return absl::InvalidArgumentError(
        fmt::format("a prompt of {} tokens and {} more do not fit the model's {} positions",
                    prompt_size, options.max_tokens, config.max_position_embeddings));
  }
  GenerateResult result;
  KvCache cache(config, prompt_size + options.max_tokens);
  Sampler sampler(options.temperature, options.seed);
  AlignedVector<float> hidden, logits(config.vocab_size);
  const auto next = [&]() {
    const int64_t rows = static_cast<int64_t>(hidden.size()) / config.hidden_size;
    decoder->Logits(hidden.data() + (rows - 1) * config.hidden_size, 1, logits.data());
    return sampler.Next(logits);
  };

  double begin_ms = decoder->moe()->NowMs();
  const int64_t max_rows = decoder->moe()->max_rows();
  for (int64_t at = 0; at < prompt_size; at += max_rows) {
    const SequenceInput input = {&cache, 0,
                                 prompt.subspan(at, std::min(max_rows, prompt_size - at))};
    MOERT_RETURN_IF_ERROR(decoder->Step(StepPhase::kPrefill, {&input, 1}, &hidden));
  }
  MOERT_ASSIGN_OR_RETURN(int32_t token, next());
  result.ttft_ms = decoder->moe()->NowMs() - begin_ms;
  while (true) {
    const auto& stop = options.stop_tokens;
    if (std::find(stop.begin(), stop.end(), token) != stop.end()) break;
    result.tokens.push_back(token);
    if (options.on_token) MOERT_RETURN_IF_ERROR(options.on_token(token));
    if (static_cast<int64_t>(result.tokens.size()) == options.max_tokens) break;
    begin_ms = decoder->moe()->NowMs();
    const SequenceInput input = {&cache, 0, {&token, 1}};
    MOERT_RETURN_IF_ERROR(decoder->Step(StepPhase::kDecode, {&input, 1}, &hidden));
    MOERT_ASSIGN_OR_RETURN(token, next());
    result.step_ms.push_back(decoder->moe()->NowMs() - begin_ms);
  }
  return result;
}

}  // namespace moert::host
