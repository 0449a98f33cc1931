#include "cli/common/budget_flag.h"

#include <fmt/format.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "cli/common/args.h"
#include "util/rounding.h"

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

absl::StatusOr<int64_t> ParseHostBudget(absl::string_view text, int64_t expert_bytes) {
  constexpr int64_t kAll = int64_t{1} << 62;  // more than there are
  if (text.empty()) return -1;
  if (text == "all") return kAll;
  if (text == "0") return 0;
  const absl::StatusOr<Budget> budget = ParseBudget(text);
  if (!budget.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("--host-budget: {}; or 0, or all", std::string(budget.status().message())));
  }
  return budget->bytes.value_or(
      static_cast<int64_t>(budget->fraction * static_cast<double>(expert_bytes)));
}

int64_t ExpertBytes(const ExpertSource& experts) {
  int64_t bytes = 0;
  for (int l = 0; l < experts.model().num_layers(); ++l) {
    for (int e = 0; e < experts.model().layers[l].num_experts; ++e) {
      bytes += util::RoundUp(experts.layout(l, e, 0).bytes, kRecordAlignment);
    }
  }
  return bytes;
}

}  // namespace moert::cli
