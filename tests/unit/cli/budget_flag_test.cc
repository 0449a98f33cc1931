#include "cli/common/budget_flag.h"

#include <string>

#include "support/catch.h"

namespace moert::cli {
namespace {

TEST_CASE("budgets are sizes or shares of the experts") {
  REQUIRE(*ParseBudget("512MiB")->bytes == int64_t{512} << 20);
  REQUIRE(*ParseBudget("8GiB")->bytes == int64_t{8} << 30);
  REQUIRE(*ParseBudget("1.5GiB")->bytes == int64_t{3} << 29);
  REQUIRE(*ParseBudget("4096")->bytes == 4096);
  const auto quarter = ParseBudget("25%");
  REQUIRE_OK(quarter.status());
  REQUIRE_FALSE(quarter->bytes.has_value());
  REQUIRE(quarter->fraction == 0.25);
  REQUIRE(ParseBudget("12.5%")->fraction == 0.125);
  REQUIRE(ParseBudget("100%")->fraction == 1.0);
}

TEST_CASE("bad budgets: an error that shows the value and what is legal") {
  for (const char* bad : {"", "%", "0", "0%", "-5%", "101%", "nan%", "inf%", "x%", "1e400%", "-1",
                          "12XB", "MiB", "99999999999GiB", "25 %%", "nanGiB"}) {
    INFO(bad);
    const auto parsed = ParseBudget(bad);
    REQUIRE(parsed.status().code() == absl::StatusCode::kInvalidArgument);
    const std::string message(parsed.status().message());
    REQUIRE_THAT(message, Catch::StartsWith("'" + std::string(bad) + "' is not a budget"));
  }
}

TEST_CASE("pinned memory is a size, a share of the experts, all, or none") {
  CHECK(*ParseHostBudget("", 1000) == -1);
  CHECK(*ParseHostBudget("0", 1000) == 0);
  CHECK(*ParseHostBudget("8GiB", 1000) == int64_t{8} << 30);
  CHECK(*ParseHostBudget("25%", 1000) == 250);
  CHECK(*ParseHostBudget("all", 1000) > int64_t{1} << 60);
  const absl::Status bad = ParseHostBudget("most", 1000).status();
  CHECK(bad.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(bad.message()),
             Catch::Contains("--host-budget: 'most'") && Catch::Contains("all"));
}

}  // namespace
}  // namespace moert::cli
