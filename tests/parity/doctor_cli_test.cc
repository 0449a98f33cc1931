// The answers of doctor about a model beside runs of it, on a virtual clock with the rates that
// doctor was given: a run is as fast as the range says, and the budget that is advised is taken.
#include <nlohmann/json.hpp>
#include <string>

#include "cli/doctor/advice.h"
#include "cli/doctor/model_facts.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/run_tool.h"
#include "support/temp_dir.h"

namespace moert::cli {
namespace {

const std::string kTiny = SourceDir() + "/examples/models/tiny-moe";
const std::string kText = SourceDir() + "/tests/data/eval/humaneval.tokens.u16";

constexpr double kDisk = 1e7, kLayer = 1e-4;  // bytes a second, seconds

// Products cost nothing here: the clock of the runs charges them to the layer.
Rates SlowDisk() {
  Rates rates;
  rates.memory = rates.dense = rates.experts["bf16"] = 1e18;
  rates.disk = kDisk;
  rates.layer_s = kLayer;
  return rates;
}

// Advice for a machine whose RAM holds this share of the experts, as they are stored.
Placement Advised(const ModelFacts& facts, double share) {
  Room room;
  room.memory = facts.dense_bytes + facts.kv_bytes + facts.fixed_bytes +
                static_cast<int64_t>(share * static_cast<double>(facts.schemes[0].bytes));
  const Advice advice = Advise(facts, room, SlowDisk());
  REQUIRE(advice.fits);
  REQUIRE(advice.placements[0].as.scheme == "bf16");
  CHECK(advice.placements[0].tiers.memory == Approx(share).epsilon(0.01));
  return advice.placements[0];
}

nlohmann::json Run(const std::string& flags, const test::TempDir& dir) {
  test::WriteFile(dir / "profile.json", nlohmann::json{{"link_bytes_per_s", kDisk},
                                                       {"link_latency_ns", 0},
                                                       {"decode_layer_ns", 1e9 * kLayer}}
                                            .dump());
  const test::Outcome run = test::RunTool(
      "run",
      "ppl --model " + kTiny + " --tokens " + kText +
          " --window 256 --limit 256 --step-tokens 1 --clock virtual --quiet --json - --profile " +
          (dir / "profile.json") + " " + flags,
      dir);
  INFO(run.err);
  REQUIRE(run.status == 0);
  return nlohmann::json::parse(run.out);
}

TEST_CASE("a run is as fast as doctor says") {
  const auto facts = ReadModelFacts(kTiny, 256);
  REQUIRE_OK(facts.status());
  const test::TempDir dir;
  for (const int percent : {15, 25, 50, 75}) {
    const Placement advised = Advised(*facts, percent / 100.0);
    for (const char* strategy : {"on-demand", "fate"}) {
      const double speed =
          Run("--strategy " + std::string(strategy) + " --budget " + std::to_string(percent) + "%",
              dir)["tokens_per_s"];
      INFO(percent << " %, " << strategy << ": " << speed << " tokens/s");
      CHECK(speed >= advised.speed.least);
      CHECK(speed <= advised.speed.most);
    }
  }
}

TEST_CASE("a run takes the budget that doctor advises, and stays within it") {
  const auto facts = ReadModelFacts(kTiny, 256);
  REQUIRE_OK(facts.status());
  const test::TempDir dir;
  const Placement advised = Advised(*facts, 0.25);
  const auto run = Run("--strategy on-demand --budget " + std::to_string(advised.budget), dir);
  CHECK(run["budget_bytes"] == advised.budget);
  CHECK(run["peak_bytes"] <= advised.budget);
  CHECK(run["tokens_per_s"] >= advised.speed.least);
}

}  // namespace
}  // namespace moert::cli
