#include "cli/common/budget_flag.h"

#include <fmt/format.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "cli/common/args.h"

namespace moert::cli {

absl::StatusOr<Budget> ParseBudget(absl::string_view text) {
  absl::string_view number = text;
  if (absl::ConsumeSuffix(&number, "%")) {
    double percent = 0.0;
    if (!absl::SimpleAtod(number, &percent) || !(percent > 0.0) || !(percent <= 100.0)) {
      return absl::InvalidArgumentError(fmt::format(
          "'{}' is not a budget: a percentage is above 0 and at most 100", std::string(text)));
    }
    return Budget::Fraction(percent / 100.0);
  }
  const absl::StatusOr<int64_t> bytes = ParseSize(text);
  if (!bytes.ok() || *bytes == 0) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is not a budget: legal are sizes like 512MiB or 8GiB, and shares of the "
                    "experts like 25%",
                    std::string(text)));
  }
  return Budget::Bytes(*bytes);
}

}  // namespace moert::cli
