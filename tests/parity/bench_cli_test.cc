// moert-bench as users script it: strategies compared on a synthetic model, reproducible on the
// virtual clock, and traces that moert-sim replays to the same counters.
#include <sys/wait.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "moert/offline/plan.h"
#include "support/paths.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace moert {
namespace {

using Json = nlohmann::json;

const test::TempDir& Dir() {
  static const test::TempDir dir;
  return dir;
}

struct Outcome {
  int status = -1;
  std::string out, err;
};

Outcome Run(const std::string& args) {
  const std::string base = Dir().path();
  const std::string command =
      BinDir() + "/" + args + " >" + base + "/out 2>" + base + "/err </dev/null";
  Outcome outcome;
  const int raw = std::system(command.c_str());
  REQUIRE(WIFEXITED(raw));
  outcome.status = WEXITSTATUS(raw);
  outcome.out = test::ReadFile(base + "/out");
  outcome.err = test::ReadFile(base + "/err");
  return outcome;
}

Json RunJson(const std::string& args) {
  const Outcome outcome = Run(args + " --json - --quiet");
  INFO(args << "\n" << outcome.err);
  REQUIRE(outcome.status == 0);
  return Json::parse(outcome.out);
}

constexpr char kVirtual[] =
    "moert-bench decode --synthetic tiny:3 --clock virtual --steps 20 --repeats 2 --warm 20 "
    "--budget 25%,50% --link-gbps 0.2 --seed 4 ";

TEST_CASE("gemm takes a plan of the shape that is measured, and no other") {
  MoeLayerSpec layer;
  layer.num_experts = 4;
  layer.hidden = 128;
  layer.intermediate = 64;
  Plan plan;
  plan.model.layers = {layer};
  plan.version = PackVersion::Uniform(*Scheme::Parse("w4a16_g128"));
  plan.version.assignment = {{0, 0, 0, 0}};
  const std::string path = Dir().path() + "/plan.json";
  test::WriteFile(path, PlanToJson(plan));
  const std::string gemm = "moert-bench gemm --backend cuda --schemes bf16 --plan " + path;
  const Outcome other = Run(gemm + " --shape mixtral");
  CHECK(other.status != 0);
  CHECK_THAT(other.err, Catch::Contains("4 of 128 x 64") && Catch::Contains("8 of 4096 x 14336"));
  const Outcome several = Run(gemm + " --shape mixtral,qwen3-30b");
  CHECK(several.status != 0);
  CHECK_THAT(several.err, Catch::Contains("one --shape"));
}

TEST_CASE("decode on the virtual clock: reproducible, and bounded by the oracles") {
  const std::string args =
      std::string(kVirtual) + "--strategy 'resident@100%;on-demand;on-demand+fate.prefetch'";
  const Json first = RunJson(args);
  CHECK(first["groups"] == RunJson(args)["groups"]);
  CHECK(first["groups"] != RunJson(args + " --workload uniform")["groups"]);
  REQUIRE(first["groups"].size() == 2);
  double previous = 0;
  for (const Json& group : first["groups"]) {
    const Json& variants = group["variants"];
    REQUIRE(variants.size() == 3);
    const double resident_ms = variants[0]["step_ms"]["median"];
    CHECK(variants[0]["hit_ratio"] == 1.0);
    CHECK(resident_ms == Approx(3 * 0.5));  // the reference profile: 0.5 ms a layer
    for (int i = 1; i < 3; ++i) {
      const Json& v = variants[i];
      CHECK(v["steps"] == 40);
      CHECK(v["step_ms"]["median"] > resident_ms);
      CHECK(v["step_ms"]["median"].get<double>() ==
            Approx(resident_ms + v["stall_ms"].get<double>()).epsilon(0.2));
      CHECK(v["oracles"]["belady_global"] >= v["oracles"]["belady_layer"]);
      CHECK(v["oracles"]["perfect_prefetch_belady_ms"] <= v["step_ms"]["median"]);
      CHECK(v["peak_bytes"] <= v["budget_bytes"]);
      CHECK(v["tokens_per_s"].get<double>() ==
            Approx(1e3 * group["batch"].get<double>() / v["step_ms"]["median"].get<double>()));
    }
    CHECK(variants[1]["hit_ratio"] <= variants[1]["oracles"]["belady_layer"]);
    CHECK(variants[1]["hit_ratio"].get<double>() ==
          Approx(variants[1]["oracles"]["lru"].get<double>()).margin(0.01));
    CHECK(variants[1]["hit_ratio"] > previous);
    previous = variants[1]["hit_ratio"];
  }
  CHECK(first["machine"].contains("cpu"));
  CHECK_FALSE(first["commit"].get<std::string>().empty());
}

TEST_CASE("a recorded bench replays: as a workload of moert-bench, and in moert-sim") {
  const std::string trace = Dir() / "trace";
  const Json run = RunJson(std::string(kVirtual) + "--strategy on-demand --trace " + trace);
  const Json again = RunJson("moert-bench decode --workload trace:" + trace +
                             " --clock virtual --steps 20 --repeats 2 --warm 20 --budget 50% "
                             "--link-gbps 0.2 --strategy 'on-demand'");
  const Json& v = run["groups"][1]["variants"][0];
  const Json& w = again["groups"][0]["variants"][0];
  for (const char* key : {"lookups", "hits_resident", "loads", "step_ms", "oracles"}) {
    CHECK(v[key] == w[key]);
  }
  const Json sim =
      RunJson("moert-sim --trace " + trace + " --budget 50% --link-gbps 0.2 --warm 20 --oracles");
  CHECK(sim["experts"]["lookups"] == v["lookups"]);
  CHECK(sim["experts"]["hits"]["resident"] == v["hits_resident"]);
  CHECK(sim["tpot_ms"]["p50"].get<double>() == Approx(v["step_p50_ms"].get<double>()));
  for (const char* key : {"belady_layer", "belady_global", "lru", "high_set"}) {
    CHECK(sim["oracles"][key] == v["oracles"][key]);
  }
}

TEST_CASE("layer: versions drawn like plans, and what a cost table makes of them") {
  const std::string costs = Dir() / "costs.json";
  // Twice the time a byte for 2 bits as for the others.
  std::string rates;
  for (const char* scheme : {"bf16", "w8a16_g128", "w8a8", "w4a16_g128_asym", "w4a16_g-1_asym",
                             "w4a8_g128", "w3a16_g128_asym", "w3a16_g-1_asym", "w2a16_g64_asym",
                             "w2a16_g128_asym", "w2a16_g-1_asym"}) {
    rates += std::string(rates.empty() ? "" : ",") + "\"" + scheme + "\": [[1, " +
             (scheme[1] == '2' ? "1e9" : "2e9") + "], [64, " + (scheme[1] == '2' ? "1e9" : "2e9") +
             "]]";
  }
  test::WriteFile(costs, "{\"name\": \"t\", \"rates\": {" + rates + "}}");
  const Json run = RunJson(
      "moert-bench layer --synthetic tiny:2 --tokens 16 --steps 2 --repeats 2 --mixed 3 --strategy "
      "'resident:scheme=bf16;resident:scheme=mixed-0;resident:scheme=mixed-2' --costs " +
      costs);
  const Json& group = run["groups"][0];
  REQUIRE(group["variants"].size() == 3);
  for (const Json& v : group["variants"]) CHECK(v["step_ms"]["median"] > 0);
  // Each takes the memory of its own records.
  CHECK(group["variants"][1]["budget_bytes"] < group["variants"][0]["budget_bytes"]);
  const Json& predicted = group["predicted"];
  REQUIRE(predicted.size() == 4);
  std::set<double> bits;
  for (const auto& [name, p] : predicted.items()) {
    bits.insert(p["stored_bits"].get<double>());
    const double us = p["predicted_us_a_layer"], bytes = p["bytes_a_layer"];
    // All experts used at 1e9 bytes a second is the most there can be.
    CHECK(us > 0);
    CHECK(us <= 1e-3 * bytes * (1 + 1e-9));
  }
  CHECK(bits.size() == 4);
  CHECK(*bits.rbegin() == Approx(16));
  CHECK(*bits.begin() > 2);
  CHECK(run["groups"][0]["predicted"] ==
        RunJson("moert-bench layer --synthetic tiny:2 --tokens 16 --steps 2 --repeats 2 --mixed 3 "
                "--strategy resident:scheme=mixed-1 --costs " +
                costs)["groups"][0]["predicted"]);
  // Two schemes, and nothing else.
  const Json two = RunJson(
      "moert-bench layer --synthetic tiny:2 --tokens 16 --steps 2 --repeats 2 --mixed 2 "
      "--mixed-schemes w8a8,w4a8_g128 --strategy resident:scheme=mixed-1 --costs " +
      costs);
  for (const auto& [name, p] : two["groups"][0]["predicted"].items()) {
    if (name == "bf16") continue;
    CHECK(p["stored_bits"] > 4.1);
    CHECK(p["stored_bits"] < 8.4);
  }
}

TEST_CASE("wall clock: prefill, layers, experts from a file") {
  const Json prefill = RunJson(
      "moert-bench prefill --synthetic tiny:2 --batch 1,2 --prompt 24 --steps 2 --repeats 2 --warm "
      "1 --budget 50% --strategy 'on-demand;fate' --attention-us 50 --threads 2");
  REQUIRE(prefill["groups"].size() == 2);
  for (const Json& group : prefill["groups"]) {
    for (const Json& v : group["variants"]) {
      CHECK(v["step_ms"]["min"] > 2 * 0.050);
      CHECK(v["step_ms"]["min"] <= v["step_ms"]["median"]);
      CHECK(v["step_ms"]["median"] <= v["step_ms"]["max"]);
    }
  }
  CHECK(prefill["groups"][1]["variants"][0]["lookups"] >
        prefill["groups"][0]["variants"][0]["lookups"]);
  const Json layer = RunJson(
      "moert-bench layer --synthetic tiny:2 --tokens 1,8 --repeats 2 --dir " + Dir().path());
  CHECK(layer["source"] == "disk");
  CHECK(layer["groups"].size() == 2);
  for (const auto& entry : std::filesystem::directory_iterator(Dir().path())) {
    CHECK(entry.path().filename().string().find("moert-synthetic") == std::string::npos);
  }
}

TEST_CASE("hot=before begins with what the strategy in front of it held when the warm-up ended") {
  const Json run = RunJson(
      "moert-bench decode --synthetic tiny:2 --schemes bf16,w4a16_g128 --budget 60% --clock "
      "virtual "
      "--workload shift --warm 40 --steps 20 --repeats 3 --strategy "
      "'dynaexq:lo=w4a16_g128,interval_ms=5;dynaexq:lo=w4a16_g128,interval_ms=10000000,hot="
      "before'");
  const Json& variants = run["groups"][0]["variants"];
  CHECK(variants[0]["promotions"] > 0);
  CHECK(variants[1]["promotions"] == 0);
  // The budget also holds a policy's list of hot experts, so the pools are compared.
  CHECK(variants[1]["slots"] == variants[0]["slots"]);
  CHECK(variants[1]["total_experts"] == variants[0]["total_experts"]);
  CHECK(variants[1]["steps"] == 60);
}

TEST_CASE("what cannot run is refused with a reason") {
  const auto error = [](const std::string& args) {
    const Outcome outcome = Run("moert-bench decode " + args);
    CHECK(outcome.status == 2);
    return outcome.err;
  };
  using Catch::Contains;
  CHECK_THAT(error(""), Contains("--synthetic"));
  CHECK_THAT(error("--synthetic nothing"), Contains("qwen3-30b"));
  CHECK_THAT(error("--synthetic tiny --workload chat"), Contains("steady"));
  CHECK_THAT(error("--synthetic tiny --strategy best"), Contains("on-demand"));
  CHECK_THAT(error("--synthetic tiny --budget 140%"), Contains("140%"));
  CHECK_THAT(error("--synthetic tiny --strategy dynaexq:hot=before"), Contains("in front of it"));
  CHECK_THAT(error("--synthetic tiny --backend cuda --clock virtual"), Contains("wall"));
  CHECK_THAT(error("--synthetic tiny --strategy 'resident;on-demand@100%' --memory 1MiB"),
             Contains("--memory"));
  // One strategy of several that does not fit is left out, and says why.
  const Json run = RunJson(
      "moert-bench decode --synthetic tiny:1 --clock virtual --steps 1 --warm 0 "
      "--repeats 1 --strategy 'resident;on-demand' --budget 50%");
  CHECK_THAT(run["groups"][0]["variants"][0]["refused"].get<std::string>(),
             Contains("below the minimum"));
}

TEST_CASE("model: shapes whose dense parts are not known are refused with a reason") {
  const auto error = [](const std::string& args) {
    const Outcome outcome = Run("moert-bench model " + args);
    CHECK(outcome.status != 0);
    return outcome.err;
  };
  using Catch::Contains;
  CHECK_THAT(error(""), Contains("--synthetic"));
  CHECK_THAT(error("--synthetic nothing"), Contains("qwen3-30b"));
  for (const char* shape : {"xverse-moe", "phi-3.5-moe"}) {
    CHECK_THAT(error(std::string("--synthetic ") + shape),
               Contains(std::string("shape ") + shape) && Contains("dense parts"));
  }
  CHECK_THAT(error("--synthetic tiny --batch 0"), Contains("--batch"));
}

}  // namespace
}  // namespace moert
