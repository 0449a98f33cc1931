// Models whose rows see chosen positions, in the tools.
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/doctor/model_facts.h"
#include "support/architecture_fixture.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/run_tool.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::ArchitectureDir;
using test::Outcome;
using test::RunTool;
using test::TempDir;

// The tokens of a fixture's long case, one sequence behind the other.
std::string WriteTokens(const char* name, const TempDir& dir) {
  std::string bytes;
  for (const std::vector<int32_t>& sequence : test::ReadReferenceCase(name, "long").tokens) {
    for (const int32_t token : sequence) bytes += {static_cast<char>(token), '\0'};
  }
  const std::string path = dir / "tokens.u16";
  test::WriteFile(path, bytes);
  return path;
}

TEST_CASE("perplexity of sequences longer than index_topk is the reference's") {
  for (const char* name : {"deepseek_v32", "deepseek_v4", "glm_moe_dsa", "minimax_m3_vl"}) {
    TempDir dir;
    const test::ReferenceCase c = test::ReadReferenceCase(name, "long");
    const auto length = static_cast<int64_t>(c.tokens[0].size());
    const int64_t vocab = static_cast<int64_t>(c.logits.size()) / length / 3;
    double nll = 0;
    for (size_t b = 0; b < c.tokens.size(); ++b) {
      for (int64_t at = 0; at + 1 < length; ++at) {
        const float* logits = &c.logits[(b * length + at) * vocab];
        double sum = 0;
        for (int64_t v = 0; v < vocab; ++v) sum += std::exp(logits[v]);
        nll += std::log(sum) - logits[c.tokens[b][at + 1]];
      }
    }
    const Outcome outcome =
        RunTool("run",
                "ppl --model " + ArchitectureDir(name) + " --dtype f32 --window " +
                    std::to_string(length) + " --tokens " + WriteTokens(name, dir) + " --json -",
                dir);
    INFO(name << ": " << outcome.err);
    REQUIRE(outcome.status == 0);
    const double got = nlohmann::json::parse(outcome.out)["ppl"];
    CHECK(got == Approx(std::exp(nll / (3.0 * static_cast<double>(length - 1)))).epsilon(1e-3));
  }
}

TEST_CASE("calibration: layers that share choices take windows in which nothing is chosen") {
  struct Case {
    const char* name;
    int window;
    bool legal;
  };
  for (const Case& k : {Case{"deepseek_v32", 24, true}, Case{"glm_moe_dsa", 6, true},
                        Case{"glm_moe_dsa", 24, false}, Case{"minimax_m3_vl", 24, true}}) {
    TempDir dir;
    const Outcome outcome =
        RunTool("pack",
                "calibrate --model " + ArchitectureDir(k.name) + " --tokens " +
                    WriteTokens(k.name, dir) + " --method rtn --quiet --schemes w8a16_g128" +
                    " --window " + std::to_string(k.window) + " --out " + dir / "calibration",
                dir);
    INFO(k.name << " " << k.window << ": " << outcome.err);
    CHECK((outcome.status == 0) == k.legal);
    if (k.legal) continue;
    CHECK_THAT(outcome.err, Catch::Contains("config.json: layers share the index_topk (6)") &&
                                Catch::Contains("--window 2 to 6, not 24"));
  }
}

TEST_CASE("calibration of a model with several residual streams is refused by name") {
  TempDir dir;
  const Outcome outcome =
      RunTool("pack",
              "calibrate --model " + ArchitectureDir("deepseek_v4") + " --tokens " +
                  WriteTokens("deepseek_v4", dir) + " --method rtn --quiet --schemes w8a16_g128" +
                  " --window 24 --out " + dir / "calibration",
              dir);
  CHECK(outcome.status != 0);
  CHECK_THAT(outcome.err, Catch::Contains("model_type deepseek_v4: calibration needs one residual "
                                          "stream, not hyper-connections"));
}

TEST_CASE("doctor counts an indexer's weights and keys from config.json alone") {
  for (const char* name :
       {"deepseek_v3", "deepseek_v32", "deepseek_v4", "glm_moe_dsa", "minimax_m3_vl"}) {
    INFO(name);
    TempDir dir;
    test::WriteFile(dir / "config.json", test::ReadFile(ArchitectureDir(name) + "/config.json"));
    const auto whole = cli::ReadModelFacts(ArchitectureDir(name), 32);
    const auto config = cli::ReadModelFacts(dir.path(), 32);
    REQUIRE_OK(whole.status());
    REQUIRE_OK(config.status());
    CHECK(config->kv_bytes == whole->kv_bytes);
    // Norms and biases are not counted.
    CHECK(config->dense_bytes == Approx(whole->dense_bytes).epsilon(0.03));
  }
}

}  // namespace
}  // namespace moert
