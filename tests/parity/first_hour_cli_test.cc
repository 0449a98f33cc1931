// A new user's commands: help, lists, text in place of token files, other schemes on the fly, chat,
// and every message that says what to do next.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/gguf_file.h"
#include "support/paths.h"
#include "support/run_tool.h"
#include "support/temp_dir.h"
#include "support/tiny_model.h"

namespace moert {
namespace {

using Json = nlohmann::json;
using test::Outcome;

const test::TempDir& Scratch() {
  static const test::TempDir dir;
  return dir;
}
Outcome Run(const std::string& tool, const std::string& args) {
  return test::RunTool(tool, args, Scratch());
}
std::string Model() {
  return " --model " + TinyModelDir() + " --cache " + Scratch() / "cache" + " ";
}

TEST_CASE("every tool: -h, --version, a man page, completion that bash takes") {
  for (const char* tool : {"run", "pack", "bench", "sim"}) {
    INFO(tool);
    const std::string name = std::string("moert-") + tool;
    CHECK(Run(tool, "-h").status == 0);
    CHECK_THAT(Run(tool, "--version").out, Catch::StartsWith(name + " 0."));
    const Outcome man = Run(tool, "--help=man");
    CHECK_THAT(man.out, Catch::StartsWith(".TH " + name) && Catch::Contains(".SH EXIT STATUS") &&
                            Catch::Contains("\\-\\-json"));
    const Outcome bash = Run(tool, "--help=bash");
    REQUIRE(bash.status == 0);
    const std::string script = Scratch() / "completion";
    test::WriteFile(script, bash.out + "COMP_WORDS=(" + name + " --ver) COMP_CWORD=1\n_moert_" +
                                tool + "; printf '%s,' \"${COMPREPLY[@]}\"\n");
    CHECK(std::system(("bash -n " + script).c_str()) == 0);
    if (std::string(tool) == "sim") continue;  // no commands to complete
    REQUIRE(std::system(("bash " + script + " >" + script + ".out").c_str()) == 0);
    CHECK(ReadWholeFile(script + ".out") == "--version,");
  }
}

TEST_CASE("every command takes --quiet and --json; help names a command; words nearly right") {
  const std::vector<std::pair<std::string, std::vector<std::string>>> tools = {
      {"run", {"generate", "chat", "ppl", "list", "doctor"}},
      {"pack", {"quantize", "calibrate", "allocate", "cache", "info", "verify"}},
      {"bench", {"gemm", "probe", "layer", "decode", "prefill", "model", "ranks", "workload"}},
      {"sim", {""}}};
  for (const auto& [tool, commands] : tools) {
    for (const std::string& command : commands) {
      INFO(tool << " " << command);
      const Outcome help = Run(tool, "help " + command);
      CHECK(help.status == 0);
      for (const char* flag : {"--quiet", "--json", "--force"}) {
        CHECK_THAT(help.out, Catch::Contains(flag));
      }
    }
  }
  CHECK_THAT(Run("run", "genrate").err, Catch::Contains("did you mean generate?"));
  CHECK_THAT(Run("run", "generate --modle x").err, Catch::Contains("did you mean --model?"));
  CHECK_THAT(Run("run", "--help=bash").out, Catch::Contains("--strategy=auto|"));
}

TEST_CASE("lists: strategies, schemes, models, kernels") {
  const Outcome all = Run("run", "list");
  REQUIRE(all.status == 0);
  for (const char* word : {"dynaexq", "w4a16_g128", "qwen3_moe", "reference"}) {
    CHECK_THAT(all.out, Catch::Contains(word));
  }
  const Json json = Json::parse(Run("run", "list strategies --json -").out);
  CHECK(json["strategies"][0]["exact"] == true);
  const Outcome wrong = Run("run", "list recipes");
  CHECK(wrong.status == 2);
  CHECK_THAT(wrong.err, Catch::Contains("legal are strategies, schemes, models and kernels"));
}

TEST_CASE("--json - has stdout for itself, and the table goes to stderr") {
  const Outcome run = Run("run", "generate" + Model() + "--prompt Hello --max-tokens 2 --json -");
  REQUIRE(run.status == 0);
  CHECK(Json::parse(run.out)["tokens"].size() == 2);
  CHECK_THAT(run.err, Catch::Contains("hit ratio"));
  const Outcome info = Run("pack", "info " + TinyModelDir() + " --json -");
  CHECK(Json::parse(info.out)["kind"] == "checkpoint");
  CHECK_THAT(info.err, Catch::Contains("MoE layers"));
  const Outcome gemm = Run("bench",
                           "gemm --bytes 1M --hidden 128 --intermediate 64 --tokens 1 "
                           "--repeats 1 --threads 1 --kernels auto --json -");
  REQUIRE(gemm.status == 0);
  CHECK(Json::parse(gemm.out).contains("results"));
  CHECK_THAT(gemm.err, Catch::Contains("machine"));
}

TEST_CASE("--plot gives plot.py, which lies beside the tools, what --json has") {
  // In python's place, one that says which script it got and keeps the figures.
  const std::string python = Scratch() / "python3", script = Scratch() / "script";
  const std::string picture = Scratch() / "picture.svg";
  test::WriteFile(python,
                  "#!/bin/sh\ntest -f \"$1\" && echo \"$1\" >" + script + " && cp \"$2\" \"$3\"\n");
  REQUIRE(::chmod(python.c_str(), 0700) == 0);
  const std::string command = "PATH=" + Scratch().path() + ":$PATH " + BinDir() +
                              "/moert-pack info " + TinyModelDir() + " --plot " + picture;
  REQUIRE(std::system((command + " >/dev/null").c_str()) == 0);
  CHECK(Json::parse(ReadWholeFile(picture))["kind"] == "checkpoint");
  CHECK(
      std::filesystem::equivalent(ReadWholeFile(script).substr(0, ReadWholeFile(script).size() - 1),
                                  BinDir() + "/../share/moert/plot.py"));
}

TEST_CASE("Ctrl-C ends calibrate and gptq at the next expert, and says what is kept") {
  const std::string text = SourceDir() + "/tests/data/eval/wikitext2.txt";
  for (const std::string& command :
       {std::string("calibrate --probe-tokens 0 --schemes w4a16_g128,w2a16_g64_asym"),
        std::string("quantize --method gptq --schemes w4a16_g128")}) {
    INFO(command);
    const std::string out = Scratch() / ("stopped-" + command.substr(0, 4));
    const std::string whole = "pack " + command + " --backend cpu --threads 1 --model " +
                              TinyModelDir() + " --tokens " + text + " --out " + out;
    const std::string script = Scratch() / "stop.sh";
    // The first layer's line, or record, is there when the signal comes.
    test::WriteFile(script, BinDir() + "/moert-" + whole + " 2>" + script +
                                ".err & job=$!\n"
                                "for i in $(seq 600); do [ -e " +
                                out +
                                ".partial ] && break; sleep 0.1; done\n"
                                "kill -INT $job; wait $job\n");
    CHECK(std::system(("bash " + script).c_str()) == 1 << 8);
    const std::string said = ReadWholeFile(script + ".err");
    CHECK_THAT(said, Catch::Contains("interrupted") &&
                         Catch::Contains("completed layers are kept in " + out +
                                         ".partial; the "
                                         "same command continues"));
    CHECK_FALSE(std::filesystem::exists(out));
  }
}

TEST_CASE("a full disk under stdout is a failure; files are not overwritten without --force") {
  const auto full = [](const std::string& args) {
    return std::system((BinDir() + "/" + args + " >/dev/full 2>/dev/null").c_str());
  };
  CHECK(full("moert-pack info " + TinyModelDir()) == 1 << 8);
  CHECK(full("moert-run list") == 1 << 8);
  CHECK(full("moert-run list --json -") == 1 << 8);
  CHECK(full("moert-bench --help") == 1 << 8);
  const std::string file = Scratch() / "figures.json";
  test::WriteFile(file, "precious");
  const Outcome refused = Run("run", "list --json " + file);
  CHECK(refused.status != 0);
  CHECK_THAT(refused.err, Catch::Contains("figures.json already exists; --force overwrites it"));
  CHECK(ReadWholeFile(file) == "precious");
  CHECK(Run("run", "list --force --json " + file).status == 0);
  const Outcome nowhere = Run("run", "generate --json /no/such/figures --prompt Hi" + Model());
  CHECK(nowhere.status == 2);
  CHECK(nowhere.out.empty());  // said before the work
  CHECK_THAT(nowhere.err, Catch::Contains("--json: /no/such/figures: nothing can be written to "
                                          "/no/such: No such file or directory"));
  const std::string folder = Scratch() / "no-pack";
  std::filesystem::create_directory(folder);
  CHECK_THAT(Run("pack", "quantize --force --schemes w4a16_g128 --model " + TinyModelDir() +
                             " --out " + folder)
                 .err,
             Catch::Contains("no expert pack; --force replaces nothing else"));
}

TEST_CASE("a stderr that takes nothing, and closed streams, end no tool by a signal") {
  // The exit status of the tool through the shell, which closes what `streams` says.
  const auto with = [](const std::string& args, const std::string& streams) {
    return std::system((BinDir() + "/" + args + " " + streams).c_str());
  };
  const std::string generate = "moert-run generate --prompt Hello --max-tokens 2 --live" + Model();
  CHECK(with(generate, ">/dev/null 2>/dev/full") == 0);
  CHECK(with("moert-run bogus", "2>/dev/full") == 2 << 8);
  CHECK(with(generate, "<&- >&- 2>&-") == 1 << 8);  // the text went nowhere
  // Output does not go to the file that gets the number of a closed stream.
  const std::string trace = Scratch() / "closed.trace";
  CHECK(with(generate + " --trace " + trace, ">&- 2>&- <&-") == 1 << 8);
  CHECK(Run("sim", "--trace " + trace).status == 0);
}

TEST_CASE("text is scored as its tokens are, whatever holds them") {
  // Tokens of a text, as 16 and as 32 bits.
  const std::string text = Scratch() / "text.txt", narrow = Scratch() / "t.u16",
                    wide = Scratch() / "t.u32";
  test::WriteFile(text, ReadWholeFile(EvalDir() + "/wikitext2.txt").substr(0, 6000));
  const std::string prompt = ReadWholeFile(text);
  const std::string ids = ReadWholeFile(EvalDir() + "/wikitext2.tokens.u16").substr(0, 2048);
  std::string widened;
  for (size_t i = 0; i < ids.size(); i += 2) widened += ids.substr(i, 2) + std::string(2, '\0');
  test::WriteFile(narrow, ids);
  test::WriteFile(wide, widened);
  const auto nll = [&](const std::string& file) {
    const Outcome run =
        Run("run", "ppl" + Model() + "--window 256 --limit 1024 --json - --quiet --tokens " + file);
    INFO(run.err);
    REQUIRE(run.status == 0);
    return Json::parse(run.out);
  };
  CHECK(nll(wide)["nll"] == nll(narrow)["nll"]);
  CHECK(nll(text)["tokens_scored"].get<int>() > 500);
  const std::string binary = Scratch() / "binary";
  test::WriteFile(binary, std::string("a\0b", 3));
  CHECK_THAT(Run("run", "ppl" + Model() + "--tokens " + binary).err,
             Catch::Contains("is not UTF-8 text; files of token ids are named *.u16 or *.u32"));
}

TEST_CASE("the first open makes no second copy, and computes what a pack computes") {
  const std::string flags =
      "--prompt 'The city' --max-tokens 12 --budget 25% --strategy on-demand --json - --quiet ";
  const std::string cache = Scratch() / "empty-cache";
  const std::string model = " --model " + TinyModelDir() + " --cache " + cache + " ";
  const Json in_place = Json::parse(Run("run", "generate" + model + flags).out);
  CHECK_FALSE(std::filesystem::exists(cache));
  const Json pack = Json::parse(Run("run", "generate" + model + flags + "--pack").out);
  bool packed = false;
  for (const auto& entry : std::filesystem::directory_iterator(cache))
    packed |= entry.is_directory();
  CHECK(packed);
  CHECK(in_place["tokens"] == pack["tokens"]);
  CHECK(in_place["experts"]["loads"] == pack["experts"]["loads"]);
}

TEST_CASE("--as makes the pack that a scheme or a strategy needs") {
  const std::string flags = "generate" + Model() + "--prompt Hello --max-tokens 2 ";
  const std::string dynaexq = "--strategy dynaexq:hi=bf16,lo=w4a16_g128 ";
  const Outcome without = Run("run", flags + dynaexq);
  CHECK(without.status == 2);
  CHECK_THAT(without.err, Catch::Contains("Give --as bf16,w4a16_g128") &&
                              Catch::Contains("moert-pack quantize --model " + TinyModelDir() +
                                              " --out PACK --schemes bf16,w4a16_g128"));
  const Outcome first = Run("run", flags + dynaexq + "--as bf16,w4a16_g128 --json -");
  INFO(first.err);
  REQUIRE(first.status == 0);
  CHECK_THAT(first.err, Catch::Contains("(once; experts as they are stored need no copy)") &&
                            Catch::Contains("writing ") && Catch::Contains(" MiB into "));
  const Outcome second = Run("run", flags + "--as w4a16_g128,bf16 --json -");
  CHECK(second.status == 0);
  CHECK_THAT(second.err, !Catch::Contains("quantizing"));
  CHECK_THAT(Run("run", flags + "--as w5").err, Catch::Contains("w5"));
  CHECK_THAT(Run("run", flags + "--as w4a16_g128 --pack").err, Catch::Contains("give one of"));
}

TEST_CASE("chat: a template by name, several turns, stop strings; without one it says what to do") {
  const Outcome none = Run("run", "chat" + Model() + "--message Hi");
  CHECK(none.status == 2);
  CHECK_THAT(none.err, Catch::Contains("has no chat template") && Catch::Contains("--template"));
  const std::string flags =
      "chat" + Model() + "--template deepseek-v1 --max-tokens 6 --json - --quiet ";
  const Json one = Json::parse(Run("run", flags + "--message Hello").out);
  CHECK(one["turns"].size() == 1);
  CHECK(one["tokens"].size() == 6);
  const std::string lines = Scratch() / "lines";
  test::WriteFile(lines, "Hello\n\nMore\n/reset\nHello\n/exit\nnever\n");
  const std::string out = Scratch() / "chat.json";
  REQUIRE(std::system((BinDir() + "/moert-run " + flags + "<" + lines + " >" + out).c_str()) == 0);
  const Json three = Json::parse(ReadWholeFile(out));
  REQUIRE(three["turns"].size() == 3);
  CHECK(three["turns"][0]["assistant"] == one["turns"][0]["assistant"]);
  CHECK(three["turns"][2]["assistant"] == one["turns"][0]["assistant"]);  // begun anew
  const std::string answer = one["turns"][0]["assistant"];
  const Json stopped =
      Json::parse(Run("run", flags + "--message Hello --stop '" + answer.substr(1, 2) + "'").out);
  CHECK(stopped["text"].get<std::string>() == answer.substr(0, answer.find(answer.substr(1, 2))));
  CHECK_THAT(Run("run", flags + "--context 16 --message '" + std::string(200, 'x') + "'").err,
             Catch::Contains("fills the context of 16"));
}

TEST_CASE("chat draws as generation_config.json asks, where no flag says otherwise") {
  const std::string model = Scratch() / "published";
  std::filesystem::copy(TinyModelDir(), model);
  test::WriteFile(model + "/generation_config.json",
                  R"({"do_sample": true, "temperature": 0.7, "top_p": 0.9, "top_k": 20})");
  const std::string chat = "chat --model " + model + " --template deepseek-v1 --message Hello " +
                           "--max-tokens 4 --seed 3 --json - ";
  const Outcome published = Run("run", chat);
  REQUIRE(published.status == 0);
  CHECK_THAT(published.err, Catch::Contains("note: --temperature 0.7, --top-p 0.9; its top_k 20 is "
                                            "not applied, by generation_config.json"));
  const Outcome greedy = Run("run", chat + "--temperature 0 --top-p 1");
  REQUIRE(greedy.status == 0);
  CHECK_THAT(greedy.err, !Catch::Contains("generation_config.json"));
  const Outcome same = Run("run", chat + "--temperature 0.7 --top-p 0.9");
  CHECK(Json::parse(same.out)["tokens"] == Json::parse(published.out)["tokens"]);
  CHECK(Json::parse(greedy.out)["tokens"] != Json::parse(published.out)["tokens"]);
  test::WriteFile(model + "/generation_config.json",
                  R"({"do_sample": true, "temperature": "hot"})");
  const Outcome wrong = Run("run", chat);
  CHECK(wrong.status == 2);
  CHECK_THAT(wrong.err, Catch::Contains("generation_config.json: temperature: legal is a number"));
}

TEST_CASE("info answers first, on one screen, and marks what is stored; --all has every scheme") {
  const std::string info = "info " + TinyModelDir() + " --budget 8gb";
  const std::string out = Run("pack", info).out;
  const std::string all = Run("pack", info + " --all").out;
  CHECK(std::count(out.begin(), out.end(), '\n') <= 45);
  CHECK(std::count(all.begin(), all.end(), '\n') > std::count(out.begin(), out.end(), '\n'));
  const size_t answer = out.find("with --budget 8gb"), tables = out.find("stored bits");
  REQUIRE(answer != std::string::npos);
  CHECK(answer < tables);
  CHECK_THAT(out, Catch::Contains("bf16 *"));
}

TEST_CASE("a GGUF is answered with the plug-in that takes it") {
  const std::string file = Scratch() / "model.gguf";
  test::WriteFile(file, test::TinyGguf().Bytes());
  for (const char* command : {"generate --prompt Hi --model ", "chat --message Hi --model "}) {
    const Outcome refused = Run("run", command + file);
    INFO(command);
    CHECK(refused.status == 2);
    CHECK_THAT(refused.err, Catch::Contains("GGUF") && Catch::Contains("plug-in"));
  }
}

TEST_CASE("doctor says what there is and what would be fastest") {
  const Outcome bare = Run("run", "doctor --json -");
  REQUIRE(bare.status == 0);
  const Json report = Json::parse(bare.out);
  CHECK(report["memory"]["installed"].get<int64_t>() > 0);
  CHECK_FALSE(report["machine"]["isa"].empty());
  CHECK(report["cuda"].contains("why_not"));
  const Outcome model = Run("run", "doctor --seconds 0.1" + Model());
  REQUIRE(model.status == 0);
  CHECK_THAT(model.out, Catch::Contains("bf16 *") && Catch::Contains("100 % in RAM") &&
                            Catch::Contains("exactly as published; every expert stays") &&
                            Catch::Contains("moert-run generate --prompt \"...\" --model") &&
                            Catch::Contains("measured here, now: memory "));
  // The command that it names runs.
  const size_t line = model.out.find("moert-run generate");
  const std::string typed = model.out.substr(line, model.out.find('\n', line) - line);
  CHECK(Run("run", typed.substr(10) + " --max-tokens 2 --quiet").status == 0);
  const Json advice =
      Json::parse(Run("run", "doctor --seconds 0.05 --quiet --json -" + Model()).out);
  const Json& speed = advice["advice"]["placements"][0]["tokens_per_s"];
  CHECK(speed["least"] > 0);
  CHECK(speed["most"] >= speed["least"]);
  // Within little memory the same model needs fewer bits.
  // The same answer from a config.json alone, and one for a GGUF.
  const std::string alone = Scratch() / "alone";
  std::filesystem::create_directory(alone);
  std::filesystem::copy_file(TinyModelDir() + "/config.json", alone + "/config.json");
  const Outcome config = Run("run", "doctor --seconds 0.05 " + alone);
  REQUIRE(config.status == 0);
  CHECK_THAT(config.out, Catch::Contains("from config.json alone") && Catch::Contains("bf16 *"));
  test::WriteFile(Scratch() / "m.gguf", test::TinyGguf().Bytes());
  const Outcome gguf = Run("run", "doctor --seconds 0.05 " + Scratch() / "m.gguf");
  REQUIRE(gguf.status == 0);
  CHECK_THAT(gguf.out, Catch::Contains("qwen3moe: 2 MoE layers of 8 experts") &&
                           Catch::Contains("Q4_0 *") && Catch::Contains("llama-server -m"));
  const std::string small = "ulimit -v 400000; " + BinDir() + "/moert-run doctor --seconds 0" +
                            Model() + " >" + Scratch() / "small";
  REQUIRE(std::system(("sh -c '" + small + "'").c_str()) == 0);
  CHECK_THAT(ReadWholeFile(Scratch() / "small"), Catch::Contains("`ulimit -v` allows"));
}

TEST_CASE("--live and the warning of a budget beyond the machine's memory") {
  const Outcome live = Run(
      "run", "ppl" + Model() + "--live --limit 1024 --tokens " + EvalDir() + "/gsm8k.tokens.u16");
  REQUIRE(live.status == 0);
  CHECK_THAT(live.err, Catch::Contains("tokens/s | hits ") && Catch::Contains("fast tier"));
}

}  // namespace
}  // namespace moert
