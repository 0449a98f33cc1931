// How many rows the steps of a prompt should have.
//
// A step of a prompt uses nearly every expert of every layer, so a prompt of n steps loads what is
// missing n times. More rows a step are fewer loads, each hidden behind more arithmetic; they cost
// workspace, which the budget pays for and a cache lacks (EngineOptions::max_tokens_per_forward).
#ifndef MOERT_TOOLS_PROMPT_ROWS_H_
#define MOERT_TOOLS_PROMPT_ROWS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "moert/options.h"
#include "moert/source/expert_source.h"

namespace moert {

struct PromptRows {
  int64_t rows = 0;
  std::string why = {};  // one line for people
};

/// For prompts of up to `tokens` tokens. Begins with options.max_tokens_per_forward, or as many as
/// there are tokens, and doubles while transfers are expected to take longer than what they can
/// hide behind and the workspace stays within an eighth of the budget. By the rates of
/// options.profile and link_gbps: give a measured profile. InvalidArgument for a count below 1, and
/// as Engine::Plan where nothing fits the budget. Thread-safe.
absl::StatusOr<PromptRows> ChoosePromptRows(const ExpertSource& source,
                                            const EngineOptions& options, int64_t tokens);

}  // namespace moert

#endif  // MOERT_TOOLS_PROMPT_ROWS_H_
