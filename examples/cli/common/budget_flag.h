// The flags --budget and --host-budget: a size, or a share of the routed experts.
#ifndef MOERT_EXAMPLES_CLI_COMMON_BUDGET_FLAG_H_
#define MOERT_EXAMPLES_CLI_COMMON_BUDGET_FLAG_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "moert/options.h"
#include "moert/source/expert_source.h"

namespace moert::cli {

/// "512MiB", "8GiB" (everything: pools and fixed parts), or "25%" (pools that hold that share of
/// all routed experts, fixed parts added; above 0 and at most 100).
absl::StatusOr<Budget> ParseBudget(absl::string_view text);

/// Parses --host-budget for EngineOptions::host_budget: a size or a share of `expert_bytes`, 0, or
/// "all". Empty: not given.
absl::StatusOr<int64_t> ParseHostBudget(absl::string_view text, int64_t expert_bytes);

/// Bytes of all experts of the first version, laid out as in pinned memory.
int64_t ExpertBytes(const ExpertSource& experts);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_BUDGET_FLAG_H_
