// moert-run as users script it: exit statuses, what goes to stdout and stderr, and the bundled
// model against its reference through the whole tool.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

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

const test::TempDir& Cache() {
  static const test::TempDir dir;
  return dir;
}

// Runs `moert-run ARGS` with the bundled model's pack cached in a folder of this process.
Outcome Run(const std::string& args) {
  const std::string base = Cache().path();
  const std::string command =
      BinDir() + "/moert-run " + args + " >" + base + "/out 2>" + base + "/err </dev/null";
  Outcome outcome;
  const int raw = std::system(command.c_str());
  REQUIRE(WIFEXITED(raw));
  outcome.status = WEXITSTATUS(raw);
  outcome.out = ReadWholeFile(base + "/out");
  outcome.err = ReadWholeFile(base + "/err");
  return outcome;
}

std::string Model() {
  return " --model " + TinyModelDir() + " --cache " + Cache().path() + "/cache ";
}
std::string Tokens(const std::string& domain) {
  return " --tokens " + EvalDir() + "/" + domain + ".tokens.u16 ";
}

Json RunJson(const std::string& args) {
  const Outcome outcome = Run(args + " --json - --quiet");
  INFO(args << "\n" << outcome.err);
  REQUIRE(outcome.status == 0);
  REQUIRE(outcome.err.empty());
  return Json::parse(outcome.out);  // fails if anything else is on stdout
}

std::set<std::string> Keys(const Json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

TEST_CASE(
    "ppl: the first eight windows of each domain, exact at every budget, prefill and decode") {
  for (const char* domain : {"wikitext2", "gsm8k", "humaneval"}) {
    const std::string limit = Tokens(domain) + "--limit 1100 ";
    const Json full = RunJson("ppl" + Model() + limit + "--strategy resident");
    REQUIRE(full["tokens_scored"] == 1022);
    for (const char* flags :
         {"--budget 25%", "--budget 15% --threads 1", "--budget 50% --strategy fate",
          "--budget 25% --step-tokens 1 --batch 2", "--budget 15% --step-tokens 7"}) {
      INFO(flags);
      const Json run = RunJson("ppl" + Model() + limit + flags);
      REQUIRE(run["nll"] == full["nll"]);
      REQUIRE(run["ppl"] == full["ppl"]);
      REQUIRE(run["peak_bytes"] <= run["budget_bytes"]);
      REQUIRE(run["experts"]["loads"] > 0);
    }
  }
}

TEST_CASE(
    "ppl: window 0 equals the reference, in fp32 closely, in bf16 within a tenth of a percent") {
  const Json reference = ReadReference();
  for (const auto& [domain, numbers] : reference["domains"].items()) {
    INFO(domain);
    const double expected = numbers["nll_window0_cpu"];
    const std::string args = "ppl" + Model() + Tokens(domain) + "--limit 512 --budget 25% ";
    REQUIRE(RunJson(args + "--dtype f32")["nll"].get<double>() == Approx(expected).epsilon(1e-5));
    REQUIRE(RunJson(args)["nll"].get<double>() == Approx(expected).epsilon(1e-3));
  }
}

TEST_CASE("generate: greedy tokens and text of the reference prompts in fp32") {
  const nlohmann::json reference = ReadReference();
  for (const auto& entry : reference["greedy"]) {
    const std::string file = Cache() / "prompt";
    test::WriteFile(file, entry["prompt"].get<std::string>());
    const std::string args = "generate" + Model() + "--prompt-file " + file +
                             " --max-tokens 64 --budget 25% --dtype f32";
    const Json run = RunJson(args);
    REQUIRE(run["tokens"] == entry["continuation_ids"]);
    REQUIRE(run["text"] == entry["text"]);
    const Outcome plain = Run(args + " --quiet");
    REQUIRE(plain.status == 0);
    REQUIRE(plain.out == entry["text"].get<std::string>() + "\n");
  }
}

TEST_CASE("generate: the same seed draws the same text, greedy ignores it") {
  const std::string args = "generate" + Model() + "--prompt 'The city' --max-tokens 24 ";
  const Json a = RunJson(args + "--temperature 1 --seed 1");
  REQUIRE(RunJson(args + "--temperature 1 --seed 1")["tokens"] == a["tokens"]);
  REQUIRE(RunJson(args + "--temperature 1 --seed 2")["tokens"] != a["tokens"]);
  REQUIRE(RunJson(args + "--seed 1")["tokens"] == RunJson(args + "--seed 2")["tokens"]);
}

TEST_CASE("ppl: resident-forward prediction changes no bit and beats the next layer's gate") {
  const std::string args = "ppl" + Model() + Tokens("wikitext2") +
                           "--limit 256 --window 256 --step-tokens 1 --budget 25% --link-gbps 0.2 "
                           "--clock virtual --strategy importance:alpha=0,cpu=0,predict=";
  const Json forward = RunJson(args + "forward"), gate = RunJson(args + "gate");
  REQUIRE(forward["window_nll"] == gate["window_nll"]);
  REQUIRE(forward["window_nll"].size() == 1);
  const Json with = forward["prefetch"], without = gate["prefetch"];
  // The host predicts every layer but the first, which no layer comes before; a few steps run
  // without prefetch, to see whether it pays.
  const int64_t wraps = with["predictions"]["next_gate"];
  CHECK(wraps > 200);
  CHECK(with["predictions"]["resident_forward"] == 7 * wraps);
  CHECK(without["predictions"]["resident_forward"] == 0);
  CHECK(without["predictions"]["next_gate"] == 8 * wraps);
  CHECK(with["recall"].get<double>() > without["recall"].get<double>() + 0.05);
  CHECK(with["active"].get<double>() > without["active"].get<double>() + 0.03);
}

TEST_CASE("the JSON object has exactly the documented keys") {
  const std::set<std::string> top = {
      "command",        "model",      "backend",       "strategy",
      "budget_bytes",   "peak_bytes", "nll",           "ppl",
      "text",           "tokens",     "ttft_ms",       "tpot_ms",
      "version",        "seed",       "pool_bytes",    "experts",
      "prefetch",       "routing",    "precision",     "balance",
      "stall_ms",       "host_syncs", "tokens_scored", "policy_fallbacks",
      "graph_captured", "window_nll", "tokens_per_s",  "prompt_tokens_per_s",
      "promise",        "pinned"};
  const Json generate = RunJson("generate" + Model() + "--prompt Hello --max-tokens 4");
  const Json ppl = RunJson("ppl" + Model() + Tokens("gsm8k") + "--limit 512 --step-tokens 64");
  for (const Json& run : {generate, ppl}) {
    REQUIRE(Keys(run) == top);
    REQUIRE(Keys(run["tpot_ms"]) == std::set<std::string>{"mean", "p50", "p99"});
    REQUIRE(Keys(run["experts"]) ==
            std::set<std::string>{"lookups", "hits", "late", "hit_ratio", "loads", "low_loads",
                                  "bytes_loaded", "evictions", "low_answers", "cpu_computed",
                                  "cpu_below", "cpu_read_bytes"});
    REQUIRE(Keys(run["pinned"]) == std::set<std::string>{"bytes", "swaps"});
    REQUIRE(Keys(run["experts"]["hits"]) == std::set<std::string>{"resident", "prefetched"});
    REQUIRE(Keys(run["prefetch"]) ==
            std::set<std::string>{"issued", "cancelled", "useful", "accuracy", "recall",
                                  "recall_in_window", "active", "top_score", "bytes", "predictions",
                                  "disabled", "disabled_steps"});
    REQUIRE(Keys(run["routing"]) ==
            std::set<std::string>{"substituted", "slots", "mass_substituted", "worst_request_slots",
                                  "worst_request_mass", "worst_request_mass_low",
                                  "hit_ratio_before", "low", "mass_low"});
    REQUIRE(Keys(run["precision"]) == std::set<std::string>{"promotions", "demotions", "deferred"});
    REQUIRE(Keys(run["balance"]) == std::set<std::string>{"t_load_ms", "t_cpu_ms"});
    REQUIRE(Keys(run["stall_ms"]) == std::set<std::string>{"total", "miss", "queue", "cpu"});
  }
  REQUIRE(generate["command"] == "generate");
  REQUIRE(generate["tokens"].size() == 4);
  REQUIRE(generate["nll"].is_null());
  REQUIRE(generate["ttft_ms"].get<double>() > 0.0);
  REQUIRE(ppl["command"] == "ppl");
  REQUIRE(ppl["promise"] == "exact");
  REQUIRE(ppl["text"].is_null());
  REQUIRE(ppl["tokens"].empty());
  REQUIRE(ppl["tpot_ms"]["mean"].get<double>() > 0.0);
}

TEST_CASE("statistics: a table unless quiet; --json FILE writes there") {
  const std::string args = "ppl" + Model() + Tokens("gsm8k") + "--limit 512 --budget 25% ";
  const Outcome shown = Run(args);
  REQUIRE(shown.status == 0);
  REQUIRE_THAT(shown.out, Catch::StartsWith("nll ") && Catch::Contains("hit ratio"));
  const std::string file = Cache() / "numbers.json";
  const Outcome quiet = Run(args + "--quiet --json " + file);
  REQUIRE(quiet.status == 0);
  REQUIRE_THAT(quiet.out, Catch::StartsWith("nll "));
  REQUIRE_THAT(quiet.out, !Catch::Contains("hit ratio"));
  const Json numbers = Json::parse(ReadWholeFile(file));
  REQUIRE_THAT(quiet.out, Catch::Contains("tokens_scored 511"));
  REQUIRE(numbers["nll"].get<double>() == std::stod(quiet.out.substr(4)));
  REQUIRE(Run(args + "--json /no/such/folder/x.json").status == 2);
}

TEST_CASE("bad arguments and input: status 2, one message on stderr, nothing on stdout") {
  const std::string odd = Cache() / "odd.u16", large = Cache() / "large.u16";
  test::WriteFile(odd, "abc");
  test::WriteFile(large, std::string(1024, '\xFF'));
  const std::string ppl = "ppl" + Model(), tokens = Tokens("gsm8k");
  const std::string generate = "generate" + Model();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "usage"},
      {"frobnicate", "'frobnicate' is not a command"},
      {"ppl", "--"},
      {ppl, "--tokens"},
      {ppl + tokens + "--bogus 1", "--bogus"},
      {"ppl --model /no/such/model" + tokens, "/no/such/model"},
      {ppl + "--tokens /no/such/file", "/no/such/file"},
      {ppl + "--tokens " + odd, "odd.u16: 3 bytes"},
      {ppl + "--tokens " + large, "large.u16: token 65535 at index 0 is not in 0..4095"},
      {ppl + tokens + "--window 1", "--window"},
      {ppl + tokens + "--window 4096", "2048 positions"},
      {ppl + tokens + "--limit 100", "fewer than one window of 512"},
      {ppl + tokens + "--batch 4", "--step-tokens"},
      {ppl + tokens + "--step-tokens 0", "--step-tokens"},
      {ppl + tokens + "--budget 0%", "--budget"},
      {ppl + tokens + "--budget huge", "--budget"},
      {ppl + tokens + "--budget 64KiB", "minimum"},
      {ppl + tokens + "--strategy nonsense", "on-demand"},
      {ppl + tokens + "--promise sure", "promise 'sure': must be exact"},
      {ppl + tokens + "--strategy importance --promise faithful",
       "strategy 'importance' is lossy, and the host accepts what is faithful"},
      {ppl + tokens + "--backend tpu", "cpu"},
      {ppl + tokens + "--kernels nonsense", "reference"},
      {ppl + tokens + "--profile /no/such/profile", "/no/such/profile"},
      {ppl + tokens + "--link-gbps -1", "--link-gbps"},
      {ppl + tokens + "--experts /no/such/pack", "/no/such/pack"},
      {generate, "--prompt"},
      {generate + "--prompt a --prompt-file b", "one of"},
      {generate + "--prompt ''", "empty"},
      {generate + "--prompt-file /no/such/file", "/no/such/file"},
      {generate + "--prompt a --max-tokens 4096", "2048 positions"},
      {generate + "--prompt a --temperature -1", "--temperature"},
      {generate + "--prompt a --temperature nan", "--temperature"},
  };
  for (const auto& [args, message] : cases) {
    const Outcome outcome = Run(args);
    INFO(args << "\nstderr: " << outcome.err);
    CHECK(outcome.status == 2);
    CHECK(outcome.out.empty());
    CHECK_THAT(outcome.err, Catch::Contains(message));
  }
}

TEST_CASE("damaged models: status 2, the file named") {
  const std::string dir = Cache() / "damaged";
  const auto fresh = [&] {
    std::filesystem::remove_all(dir);
    std::filesystem::copy(TinyModelDir(), dir);
  };
  const auto check = [&](const std::string& message) {
    const Outcome outcome = Run("generate --model " + dir + " --cache " + Cache().path() +
                                "/damaged-cache --prompt Hello --max-tokens 2");
    INFO(outcome.err);
    CHECK(outcome.status == 2);
    CHECK(outcome.out.empty());
    CHECK_THAT(outcome.err, Catch::Contains(message));
  };
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    fresh();
    std::filesystem::remove(dir + "/" + name);
    check(std::string(name) == "model.safetensors" ? dir : dir + "/" + name);
    fresh();
    test::WriteFile(dir + "/" + name, "");
    check(name);
    const std::string whole = ReadWholeFile(TinyModelDir() + "/" + name);
    test::WriteFile(dir + "/" + name, whole.substr(0, whole.size() / 2));
    check(name);
    test::WriteFile(dir + "/" + name, "\xFF\xFF" + whole);
    check(name);
    std::filesystem::remove(dir + "/" + name);
    std::filesystem::create_directory(dir + "/" + name);
    check(name);
  }
  fresh();  // a dense tensor of another name, then of another shape
  std::string file = ReadWholeFile(dir + "/model.safetensors");
  const size_t at = file.find("model.norm.weight");
  REQUIRE(at != std::string::npos);
  file[at + 6] = 'N';
  test::WriteFile(dir + "/model.safetensors", file);
  check("model.Norm.weight");
  fresh();
  Json config = Json::parse(ReadWholeFile(dir + "/config.json"));
  config["vocab_size"] = 4097;
  test::WriteFile(dir + "/config.json", config.dump());
  check("model.embed_tokens.weight\" is [4096, 128], expected [4097, 128]");
  config["vocab_size"] = 4096;
  config["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 4.0}};
  test::WriteFile(dir + "/config.json", config.dump());
  check("rope_type is \"dynamic\", legal are default, linear, llama3, yarn, longrope");
  config["model_type"] = "no_such_moe";
  test::WriteFile(dir + "/config.json", config.dump());
  check("qwen2_moe");
}

TEST_CASE("help and version") {
  REQUIRE(Run("--version").status == 0);
  REQUIRE(Run("--help").status == 0);
  for (const char* command : {"ppl", "generate"}) {
    const Outcome help = Run(std::string(command) + " --help");
    REQUIRE(help.status == 0);
    REQUIRE_THAT(help.out, Catch::Contains("--budget"));
  }
}

}  // namespace
}  // namespace moert
