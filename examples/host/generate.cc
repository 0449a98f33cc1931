#include "host/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "host/sampling.h"
#include "util/status_macros.h"

namespace moert::host {

absl::StatusOr<GenerateResult> Generate(TokenModel* model, absl::Span<const int32_t> prompt,
                                        const GenerateOptions& options) {
  const HfConfig& config = model->config();
  const int64_t prompt_size = static_cast<int64_t>(prompt.size());
  if (prompt_size == 0) return absl::InvalidArgumentError("the prompt is empty");
  if (options.max_tokens < 1 || options.max_tokens > config.max_position_embeddings - prompt_size) {
    return absl::InvalidArgumentError(
        fmt::format("a prompt of {} tokens and {} more do not fit the model's {} positions",
                    prompt_size, options.max_tokens, config.max_position_embeddings));
  }
  MOERT_ASSIGN_OR_RETURN(const std::unique_ptr<Sequence> sequence,
                         model->NewSequence(prompt_size + options.max_tokens));
  return Generate(model, sequence.get(), prompt, options);
}

absl::StatusOr<GenerateResult> Generate(TokenModel* model, Sequence* sequence,
                                        absl::Span<const int32_t> prompt,
                                        const GenerateOptions& options) {
  MOERT_RETURN_IF_ERROR(options.Validate());
  const HfConfig& config = model->config();
  const int64_t prompt_size = static_cast<int64_t>(prompt.size());
  const int64_t known = sequence->length();
  if (prompt_size <= known) {
    return absl::InvalidArgumentError(fmt::format(
        "a prompt of {} tokens brings nothing new to a sequence of {}", prompt_size, known));
  }
  if (options.max_tokens < 1 || options.max_tokens > sequence->max_tokens() - prompt_size) {
    return absl::InvalidArgumentError(
        fmt::format("a prompt of {} tokens and {} more do not fit a sequence of {}", prompt_size,
                    options.max_tokens, sequence->max_tokens()));
  }
  GenerateResult result;
  Sampler sampler(options);
  std::vector<int32_t> said;  // all tokens, for the penalty
  const bool penalty = options.repetition_penalty != 1.0;
  if (penalty) said.assign(prompt.begin(), prompt.end());
  std::vector<float> logits;
  const auto next = [&](int64_t row) -> absl::StatusOr<int32_t> {
    if (options.temperature <= 0.0 && !penalty) return model->Best(row);
    logits.resize(config.vocab_size);
    MOERT_RETURN_IF_ERROR(model->RowLogits(row, 1, logits.data()));
    return sampler.Next(logits, said);
  };

  double begin_ms = model->NowMs();
  const int64_t max_rows = model->max_rows();
  int64_t rows = 0;
  for (int64_t at = known; at < prompt_size; at += max_rows) {
    rows = std::min(max_rows, prompt_size - at);
    const SequenceInput input = {sequence, 0, prompt.subspan(at, rows)};
    MOERT_RETURN_IF_ERROR(model->Run(StepPhase::kPrefill, {&input, 1}));
    if (options.progress) options.progress(at + rows - known, prompt_size - known);
  }
  MOERT_ASSIGN_OR_RETURN(int32_t token, next(rows - 1));
  result.ttft_ms = model->NowMs() - begin_ms;
  while (true) {
    const auto& stop = options.stop_tokens;
    if (std::find(stop.begin(), stop.end(), token) != stop.end()) break;
    result.tokens.push_back(token);
    if (penalty) said.push_back(token);
    if (options.on_token) MOERT_RETURN_IF_ERROR(options.on_token(token));
    if (options.stop && options.stop()) break;
    if (static_cast<int64_t>(result.tokens.size()) == options.max_tokens) break;
    begin_ms = model->NowMs();
    const SequenceInput input = {sequence, 0, {&token, 1}};
    MOERT_RETURN_IF_ERROR(model->Run(StepPhase::kDecode, {&input, 1}));
    MOERT_ASSIGN_OR_RETURN(token, next(0));
    result.step_ms.push_back(model->NowMs() - begin_ms);
  }
  return result;
}

}  // namespace moert::host
