// The recorded routing of the trained model agrees with real runs about the built-in strategies:
// moert-sim on the trace ranks them as moert-run does.
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "moert/strategy.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/run_tool.h"
#include "support/tiny_model.h"

namespace moert {
namespace {

using Json = nlohmann::json;

double HitRatio(const std::string& tool, const std::string& args, const test::TempDir& dir) {
  const test::Outcome outcome = test::RunTool(tool, args + " --json - --quiet", dir);
  INFO("moert-" << tool << " " << args << "\n" << outcome.err);
  REQUIRE(outcome.status == 0);
  return Json::parse(outcome.out)["experts"]["hit_ratio"].get<double>();
}

/// Built-in strategies that serve the one version which the bundled model has, from a cache.
std::vector<std::string> CacheStrategies() {
  std::vector<std::string> names;
  for (const StrategyInfo& info : ListStrategies()) {
    const auto strategy = MakeStrategy(info.name);
    if (!strategy.ok()) continue;  // it needs to be told something
    if (strategy->versions.size() > 1) continue;
    if (!strategy->preload && strategy->serving == Serving::kCache) names.push_back(info.name);
  }
  return names;
}

TEST_CASE("strategies rank alike on the trained model and on its recorded routing") {
  const test::TempDir dir;
  const std::vector<std::string> strategies = CacheStrategies();
  REQUIRE(strategies.size() >= 4);
  // The first window of the text; the trace has the routing that fp32 arithmetic gave there.
  const std::string common = " --budget 40% --link-gbps 0.5 --strategy ";
  const std::string run_args =
      "ppl --model " + TinyModelDir() + " --cache " + dir.path() + "/cache --tokens " + EvalDir() +
      "/gsm8k.tokens.u16 --limit 512 --step-tokens 1 --clock virtual" + common;
  const std::string sim_args = "--trace " + SourceDir() +
                               "/tests/data/traces/tiny-gsm8k.safetensors --model " +
                               TinyModelDir() + " --steps 512" + common;
  std::map<std::string, double> run, sim;
  for (const std::string& name : strategies) {
    // A replay has no host that could predict through its attention: the gate predicts in both.
    const bool asks = name == "importance" || name == "fate";
    const std::string spec = asks ? name + ":predict=gate" : name;
    run[name] = HitRatio("run", run_args + spec, dir);
    sim[name] = HitRatio("sim", sim_args + name, dir);
    INFO(name << ": real " << run[name] << ", replayed " << sim[name]);
    // A lossy strategy changes what later layers see, which a replay cannot follow.
    const double exact = name == "auto" ? 0.01 : 0.005;  // its fate asks the host of the real run
    CHECK(sim[name] == Approx(run[name]).margin(MakeStrategy(name)->exact() ? exact : 0.03));
  }
  int ordered = 0;
  for (const std::string& a : strategies) {
    for (const std::string& b : strategies) {
      // Two that are this close in the real run are equals there.
      if (run[a] - run[b] < 0.02) continue;
      ++ordered;
      INFO(a << " over " << b << ": real " << run[a] << " and " << run[b] << ", replayed " << sim[a]
             << " and " << sim[b]);
      CHECK(sim[a] > sim[b]);
    }
  }
  CHECK(ordered >= static_cast<int>(strategies.size()));
}

}  // namespace
}  // namespace moert
