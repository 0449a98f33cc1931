// fate through the tools, on the virtual clock. On a real pack, transfers in two schemes: what rho
// and the phases mean for perplexity and bytes. Beside importance, which gives the same bits at
// alpha=0: as fast at every budget and link.
#include <nlohmann/json.hpp>
#include <string>

#include "support/run_tool.h"
#include "support/tiny_model.h"

namespace moert {
namespace {

using Json = nlohmann::json;
using test::Outcome;
using test::RunTool;
using test::TempDir;

const TempDir& Scratch() {
  static const TempDir* scratch = new TempDir();
  return *scratch;
}

const std::string& Pack() {
  static const auto* pack = [] {
    auto* path = new std::string(Scratch() / "pack");
    const Outcome made = RunTool("pack",
                                 "quantize --model " + TinyModelDir() + " --out " + *path +
                                     " --schemes w4a16_g128,w2a16_g64_asym",
                                 Scratch());
    INFO(made.err);
    REQUIRE(made.status == 0);
    return path;
  }();
  return *pack;
}

Json Score(const std::string& strategy, const std::string& more) {
  const Outcome run =
      RunTool("run",
              "ppl --model " + TinyModelDir() + " --experts " + Pack() + " --tokens " + EvalDir() +
                  "/gsm8k.tokens.u16 --clock virtual --link-gbps 0.2 --quiet --json - --strategy " +
                  strategy + " " + more,
              Scratch());
  INFO(run.err);
  REQUIRE(run.status == 0);
  return Json::parse(run.out);
}

TEST_CASE("prefill: rho 0 is w4, rho 1 is w2, between them fewer bytes cost little") {
  const std::string prefill = "--window 64 --limit 512 --budget 40%";
  const std::string fate = "fate:scheme=w4a16_g128,low=w2a16_g64_asym,rho=";
  const Json w4 = Score("resident:scheme=w4a16_g128", "--window 64 --limit 512");
  const Json w2 = Score("resident:scheme=w2a16_g64_asym", "--window 64 --limit 512");
  const Json none = Score(fate + "0", prefill);
  const Json some = Score(fate + "0.15", prefill);
  const Json all = Score(fate + "1", prefill);
  REQUIRE(w2["nll"].get<double>() > w4["nll"].get<double>() + 0.1);
  CHECK(none["nll"] == w4["nll"]);
  CHECK(none["experts"]["low_loads"] == 0);
  CHECK(all["nll"] == w2["nll"]);
  CHECK(some["experts"]["low_loads"] > 0);
  CHECK(some["experts"]["bytes_loaded"].get<double>() <
        0.95 * none["experts"]["bytes_loaded"].get<double>());
  CHECK(some["nll"].get<double>() < 0.7 * w4["nll"].get<double>() + 0.3 * w2["nll"].get<double>());
}

TEST_CASE("decode brings w4, but for misses under miss_bits=low") {
  const std::string decode = "--window 64 --limit 192 --step-tokens 1 --budget 30%";
  const Json w4 = Score("resident:scheme=w4a16_g128", "--window 64 --limit 192 --step-tokens 1");
  const Json exact = Score("fate:scheme=w4a16_g128,low=w2a16_g64_asym,rho=1", decode);
  const Json hasty = Score("fate:scheme=w4a16_g128,low=w2a16_g64_asym,rho=1,miss_bits=low", decode);
  CHECK(exact["nll"] == w4["nll"]);
  CHECK(exact["experts"]["low_loads"] == 0);
  CHECK(hasty["experts"]["low_loads"] > 0);
  CHECK(hasty["nll"] != w4["nll"]);
  CHECK(hasty["stall_ms"]["total"].get<double>() < exact["stall_ms"]["total"].get<double>());
}

TEST_CASE("decode: fate and auto are not behind importance, which gives the same bits") {
  const auto run = [](const std::string& strategy, const std::string& machine) {
    const Outcome run =
        RunTool("run",
                "ppl --model " + TinyModelDir() + " --tokens " + EvalDir() +
                    "/wikitext2.tokens.u16 --limit 512 --window 128 --step-tokens 1 "
                    "--clock virtual --quiet --json - --strategy " +
                    strategy + " " + machine,
                Scratch());
    INFO(run.err);
    REQUIRE(run.status == 0);
    return Json::parse(run.out);
  };
  for (const std::string machine :
       {"--budget 22% --link-gbps 0.35", "--budget 37% --link-gbps 0.25",
        "--budget 55% --link-gbps 0.15", "--budget 12% --link-gbps 0.5"}) {
    const Json fate = run("fate", machine), best = run("auto", machine);
    const Json importance = run("importance:alpha=0", machine);
    INFO(machine << ": " << fate["tpot_ms"].dump() << " " << importance["tpot_ms"].dump());
    CHECK(fate["window_nll"] == importance["window_nll"]);
    CHECK(best["tpot_ms"] == fate["tpot_ms"]);
    CHECK(fate["tpot_ms"]["mean"].get<double>() <
          1.01 * importance["tpot_ms"]["mean"].get<double>());
  }
}

}  // namespace
}  // namespace moert
