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
  REQUIRE(product.status == 0);  // a list goes on without those that are refused
  const auto known = nlohmann::json::parse(product.out)["groups"][0]["variants"];
  REQUIRE(known.size() == 3);
  CHECK_THAT(known[1]["refused"].get<std::string>(),
             Catch::Contains("unknown strategy 'expertflow-like'"));
  const test::Outcome lab = test::RunTool("bench", args, dir, LabDir());
  INFO(lab.err);
  REQUIRE(lab.status == 0);
  const auto run = nlohmann::json::parse(lab.out);
  for (const auto& variant : run["groups"][0]["variants"]) CHECK_FALSE(variant.contains("refused"));
}

}  // namespace
}  // namespace moert
