// moert-sim as users script it: a trace of moert-run replays to the same counters and the same
// logical times, under whatever strategy and budget it was recorded. Without the host, whose
// attention a run may predict by, that is.
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "support/catch.h"
#include "support/paths.h"
#include "support/temp_dir.h"
#include "support/tiny_model.h"

namespace moert {
namespace {

using Json = nlohmann::json;

struct Outcome {
  int status = -1;
  std::string out, err;
};

const test::TempDir& Dir() {
  static const test::TempDir dir;
  return dir;
}

Outcome Run(const std::string& args) {
  const std::string base = Dir().path();
  const std::string command =
      BinDir() + "/" + args + " >" + base + "/out 2>" + base + "/err </dev/null";
  Outcome outcome;
  const int raw = std::system(command.c_str());
  REQUIRE(WIFEXITED(raw));
  outcome.status = WEXITSTATUS(raw);
  outcome.out = ReadWholeFile(base + "/out");
  outcome.err = ReadWholeFile(base + "/err");
  return outcome;
}

Json RunJson(const std::string& args) {
  const Outcome outcome = Run(args + " --json - --quiet");
  INFO(args << "\n" << outcome.err);
  REQUIRE(outcome.status == 0);
  return Json::parse(outcome.out);
}

// From a pack: what reads in place take from the budget is not in a trace.
std::string Ppl(const std::string& flags) {
  return "moert-run ppl --pack --model " + TinyModelDir() + " --cache " + Dir().path() +
         "/cache --tokens " + EvalDir() + "/gsm8k.tokens.u16 --limit 520 --clock virtual " + flags;
}

TEST_CASE("a trace replays to the run's own counters on the virtual clock") {
  const std::string trace = Dir() / "trace";
  (void)RunJson(Ppl("--step-tokens 1 --budget 60% --trace " + trace));
  CHECK_NOTHROW(Json::parse(ReadWholeFile(trace + ".perfetto.json")));
  for (const char* flags :
       {"--strategy on-demand --budget 20%", "--strategy on-demand --budget 4MiB",
        "--strategy on-demand+fate.prefetch:predict=gate --budget 40% --link-gbps 0.3",
        "--strategy fate:predict=gate --budget 50%", "--strategy resident"}) {
    INFO(flags);
    // One thread, as in the replay: workspace grows with threads.
    const Json run = RunJson(Ppl(std::string("--step-tokens 1 --threads 1 ") + flags));
    const Json sim = RunJson("moert-sim --trace " + trace + " " + flags);
    for (const char* key : {"budget_bytes", "peak_bytes", "pool_bytes", "experts", "prefetch",
                            "stall_ms", "strategy", "policy_fallbacks"}) {
      CHECK(sim[key] == run[key]);
    }
    for (const char* key : {"mean", "p50", "p99"}) {  // milliseconds, from ns in different ways
      CHECK(sim["tpot_ms"][key].get<double>() ==
            Approx(run["tpot_ms"][key].get<double>()).epsilon(1e-12));
    }
    CHECK(sim["backend"] == "sim");
    CHECK(sim.size() == run.size());
  }
}

TEST_CASE("recorded routing of the trained model replays with the model's sizes") {
  const std::string recorded = SourceDir() + "/tests/data/traces/tiny-";
  double previous = 0;
  for (const char* budget : {"20%", "40%", "60%", "100%"}) {
    const Json sim = RunJson("moert-sim --trace " + recorded + "gsm8k.safetensors --model " +
                             TinyModelDir() + " --budget " + budget);
    CHECK(sim["experts"]["lookups"] == 3 * 512 * 8 * 4);
    CHECK(sim["experts"]["hit_ratio"] > previous);
    previous = sim["experts"]["hit_ratio"];
  }
  CHECK(previous > 0.99);
}

TEST_CASE("what RAM lacks is slower, and only while it is lacking") {
  const std::string trace = "moert-sim --trace " + SourceDir() +
                            "/tests/data/traces/tiny-gsm8k.safetensors --model " + TinyModelDir() +
                            " --budget 20%";
  const Json all = RunJson(trace);
  const auto mean = [](const Json& run) { return run["tpot_ms"]["mean"].get<double>(); };
  double previous = mean(all);
  for (const char* ram : {"all", "90%", "50%", "0"}) {
    const Json run = RunJson(trace + " --host-budget " + ram);
    CHECK(run["experts"] == all["experts"]);
    CHECK(mean(run) >= previous);
    if (std::string(ram) == "50%") CHECK(mean(run) > 1.01 * mean(all));
    previous = mean(run);
  }
  CHECK(previous > 1.03 * mean(all));
}

TEST_CASE("wrong arguments are named") {
  CHECK(Run("moert-sim").status == 2);
  const Outcome none = Run("moert-sim --trace /nowhere");
  CHECK(none.status == 2);
  CHECK_THAT(none.err, Catch::Contains("/nowhere"));
  const Outcome model =
      Run("moert-sim --trace " + SourceDir() + "/tests/data/traces/tiny-gsm8k.safetensors");
  CHECK(model.status == 2);
  CHECK_THAT(model.err, Catch::Contains("--model"));
  const Outcome small =
      Run("moert-sim --trace " + SourceDir() +
          "/tests/data/traces/tiny-gsm8k.safetensors --budget 1KiB --model " + TinyModelDir());
  CHECK(small.status == 2);
  CHECK_THAT(small.err, Catch::Contains("below the minimum"));
}

}  // namespace
}  // namespace moert
