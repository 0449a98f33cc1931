// The laboratory's tools know the research strategies; the product's do not.
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/paths.h"
#include "support/run_tool.h"

namespace moert {
namespace {

TEST_CASE("lab/moert-bench measures strategies that bin/moert-bench has never heard of") {
  const test::TempDir dir;
  const std::string args =
      "decode --synthetic tiny:2 --schemes bf16,w4a16_g128 --budget 60% --clock virtual --warm 10 "
      "--steps 10 --json - --quiet --strategy 'on-demand;expertflow-like;static-mixed'";
  const test::Outcome product = test::RunTool("bench", args, dir);
  CHECK(product.status == 2);
  CHECK_THAT(product.err, Catch::Contains("unknown strategy 'expertflow-like'"));
  const test::Outcome lab = test::RunTool("bench", args, dir, LabDir());
  INFO(lab.err);
  REQUIRE(lab.status == 0);
  const auto run = nlohmann::json::parse(lab.out);
  CHECK(run["groups"][0]["variants"].size() == 3);
}

}  // namespace
}  // namespace moert
