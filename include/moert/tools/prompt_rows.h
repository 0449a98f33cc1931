// How many rows the steps of a prompt should have.
//
// A step of a prompt uses nearly every expert of every layer, so a prompt of n steps loads the
// missing experts n times. More rows per step mean fewer loads, each hidden behind more arithmetic.
// They cost workspace, which takes part of the budget from the cache
// (EngineOptions::max_tokens_per_forward).
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

/// For prompts of up to `tokens` tokens. Starts with the smaller of options.max_tokens_per_forward
/// and `tokens`, and doubles while transfers are expected to take longer than the work that can
/// hide them and the workspace stays within an eighth of the budget. Uses the rates of
/// options.profile and link_gbps: give a measured profile. InvalidArgument for a count below 1, and
/// like Engine::Plan if nothing fits the budget. Thread-safe.
absl::StatusOr<PromptRows> ChoosePromptRows(const ExpertSource& source,
                                            const EngineOptions& options, int64_t tokens);

}  // namespace moert

#endif  // MOERT_TOOLS_PROMPT_ROWS_H_
