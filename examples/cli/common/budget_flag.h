// The --budget flag: a size, or a share of the routed experts.
#ifndef MOERT_EXAMPLES_CLI_COMMON_BUDGET_FLAG_H_
#define MOERT_EXAMPLES_CLI_COMMON_BUDGET_FLAG_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "moert/options.h"

namespace moert::cli {

/// "512MiB", "8GiB" (everything: pools and fixed parts), or "25%" (pools that hold that share of
/// all routed experts, fixed parts added; above 0 and at most 100).
absl::StatusOr<Budget> ParseBudget(absl::string_view text);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_BUDGET_FLAG_H_
