// moert-pack as users script it.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "moert/offline/calibration.h"
#include "moert/offline/pack.h"
#include "moert/offline/plan.h"
#include "pack/calibration_lines.h"
#include "support/architecture_fixture.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/run_tool.h"
#include "support/temp_dir.h"
#include "support/tiny_model.h"

namespace moert {
namespace {

using Json = nlohmann::json;
using test::Outcome;
using test::TempDir;

const TempDir& Scratch() {
  static const TempDir dir;
  return dir;
}
Outcome Pack(const std::string& args) { return test::RunTool("pack", args, Scratch()); }

std::string Quantize(const std::string& out, const std::string& schemes) {
  return "quantize --model " + TinyModelDir() + " --out " + Scratch() / out + " --schemes " +
         schemes;
}

Json Info(const std::string& path) {
  const Outcome outcome = Pack("info " + path + " --json -");
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
  return Json::parse(outcome.out);
}

TEST_CASE("quantize, info and verify of several schemes") {
  const std::string pack = Scratch() / "several";
  Outcome outcome = Pack(Quantize("several", "w2a16_g64_asym,bf16,w4a16_g128"));
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
  CHECK_THAT(outcome.out, Catch::Contains(pack) && Catch::Contains("w2a16_g64_asym"));
  CHECK(outcome.err == "writing 18.0 MiB into " + pack + "\n");  // no progress but on a terminal
  const Json info = Info(pack);
  CHECK(info["kind"] == "pack");
  CHECK(info["quantizer"]["method"] == "rtn");
  REQUIRE(info["versions"].size() == 3);
  const Json planned = Info(pack + " --strategy dynaexq:hi_fraction=0.25 --budget 100% --rows 16");
  CHECK(planned["need"]["plan"]["fits"] == true);
  CHECK(planned["need"]["plan"]["low_slots"] > 0);
  const std::vector<std::pair<std::string, double>> expected = {
      {"bf16", 16.0}, {"w4a16_g128", 4.25}, {"w2a16_g64_asym", 2.5}};
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(info["versions"][i]["name"] == expected[i].first);
    CHECK(info["versions"][i]["stored_bits"] == Approx(expected[i].second));
  }
  outcome = Pack("verify " + pack);
  CHECK(outcome.status == 0);
  CHECK_THAT(outcome.out, Catch::Contains("768 records and the constants are intact"));

  // The bf16 version is the checkpoint: the same numbers as without a pack.
  const std::string ppl = "ppl --model " + TinyModelDir() + " --cache " + Scratch() / "cache" +
                          " --tokens " + EvalDir() +
                          "/gsm8k.tokens.u16 --limit 512 --json - --quiet";
  const Outcome direct = test::RunTool("run", ppl, Scratch());
  REQUIRE(direct.status == 0);
  const Outcome packed =
      test::RunTool("run", ppl + " --strategy resident:scheme=bf16 --experts " + pack, Scratch());
  INFO(packed.err);
  REQUIRE(packed.status == 0);
  CHECK(Json::parse(packed.out)["nll"] == Json::parse(direct.out)["nll"]);

  // One bit of a record.
  const std::string file = pack + "/experts-00000.safetensors";
  std::string bytes = test::ReadFile(file);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  test::WriteFile(file, bytes);
  outcome = Pack("verify " + pack);
  CHECK(outcome.status == 1);
  CHECK_THAT(outcome.err, Catch::Contains("layers.") && Catch::Contains("is damaged"));
}

double Nll(const std::string& pack, const std::string& scheme) {
  const Outcome outcome = test::RunTool(
      "run",
      "ppl --model " + TinyModelDir() + " --tokens " + EvalDir() +
          "/gsm8k.tokens.u16 --limit 2048 --json - --quiet --strategy resident:scheme=" + scheme +
          " --experts " + Scratch() / pack,
      Scratch());
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
  return Json::parse(outcome.out)["nll"];
}

TEST_CASE(
    "a calibrated pack in the Hadamard domain is served, and better than one that is neither") {
  // Tokens that calibrate are not those that are scored.
  const std::string calib = Scratch() / "calibration.u16";
  const std::string tokens = test::ReadFile(EvalDir() + "/gsm8k.tokens.u16");
  test::WriteFile(calib, tokens.substr(4096 * 2, 8192 * 2));
  Outcome outcome = Pack(Quantize("hqq", "w2a16_g64_asym") + " --method hqq");
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
  outcome =
      Pack(Quantize("gptq", "w2a16_g64_asym,bf16") + " --method gptq --hadamard --tokens " + calib);
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
  const Json quantizer = Info(Scratch() / "gptq")["quantizer"];
  CHECK(quantizer["method"] == "gptq");
  CHECK(quantizer["hadamard"] == true);
  CHECK(quantizer["calibration"]["tokens"] == 8192);
  CHECK(Pack("verify " + Scratch() / "gptq").status == 0);
  const double hqq = Nll("hqq", "w2a16_g64_asym");
  const double gptq = Nll("gptq", "w2a16_g64_asym");
  const double bf16 = Nll("gptq", "bf16");
  CHECK(bf16 < gptq);
  CHECK(gptq < hqq);
  CHECK(hqq < bf16 + 0.6);
}

TEST_CASE("cache: one pack of a checkpoint, whoever asks and in whatever order") {
  const std::string cache = Scratch() / "cache";
  const std::string args = "cache --model " + TinyModelDir() + " --cache " + cache + " --schemes ";
  const Outcome first = Pack(args + "bf16,w8a16_g128");
  INFO(first.err);
  REQUIRE(first.status == 0);
  REQUIRE(!first.out.empty());
  const std::string pack = first.out.substr(0, first.out.size() - 1);
  CHECK(Pack("verify " + pack).status == 0);
  const auto written = std::filesystem::last_write_time(pack + "/moert.json");
  const Outcome again = Pack(args + "w8a16_g128,bf16");
  CHECK(again.out == first.out);
  const Outcome run = test::RunTool("run",
                                    "generate --model " + TinyModelDir() + " --cache " + cache +
                                        " --as w8a16_g128,bf16 --prompt x --max-tokens 1 --quiet",
                                    Scratch());
  INFO(run.err);
  CHECK(run.status == 0);
  int packs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(cache)) {
    packs += std::filesystem::exists(entry.path() / "moert.json");
  }
  CHECK(packs == 1);
  CHECK(std::filesystem::last_write_time(pack + "/moert.json") == written);
}

TEST_CASE("calibrate, allocate, quantize by two plans, serve both") {
  const std::string tokens = " --tokens " + EvalDir() + "/gsm8k.tokens.u16";
  const std::string calib = Scratch() / "calib";
  const std::string calibrate = "calibrate --model " + TinyModelDir() + tokens +
                                " --calibration-tokens 2048 --method rtn --quiet --schemes "
                                "w4a16_g128,w2a16_g64_asym,w2a16_g-1_asym --out ";
  Outcome outcome = Pack(calibrate + calib);
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
  const std::string whole = test::ReadFile(calib);
  const Json c = Json::parse(whole);
  REQUIRE(c["layers"].size() == 8);
  int64_t selections = 0;
  for (const auto& n : c["layers"][3]["selections"]) selections += n.get<int64_t>();
  CHECK(selections == 2048 * 4);
  // The model's README says what recall cross-layer prediction has.
  CHECK(c["layers"][4]["cross_layer_accuracy"].get<double>() > 0.7);
  // Each layer's errors cost the model something, and something small.
  REQUIRE(c["probe_tokens"] == 2048);
  for (const auto& layer : c["layers"]) {
    for (const size_t part : {0, 1}) {
      const double loss = layer["loss_per_square"][part];
      CHECK(loss > 0);
      CHECK(loss * std::pow(layer["output_norm"].get<double>(), 2) < 10);
    }
  }
  CHECK(Pack(calibrate + calib).status != 0);  // it exists
  // A refusal has the unit that was asked in.
  const std::string allocate = "allocate --calibration " + calib + " --out " + Scratch() / "none";
  outcome = Pack(allocate + " --bits 1.5");
  CHECK(outcome.status == 2);
  CHECK_THAT(outcome.err, Catch::Contains("--bits 1.5: all experts in w2a16_g-1_asym") &&
                              Catch::Contains("bits a weight; give at least that"));
  outcome = Pack(allocate + " --budget 512k");
  CHECK(outcome.status == 2);
  CHECK_THAT(outcome.err, Catch::Contains("--budget 512.0 KiB: all experts in") &&
                              Catch::Contains(" MiB; give at least that"));
  {
    const std::string locked = calib + ".locked";
    const int writer = ::open((locked + ".partial").c_str(), O_RDWR | O_CREAT, 0644);
    REQUIRE(::flock(writer, LOCK_EX) == 0);
    outcome = Pack(calibrate + locked);
    CHECK(outcome.status != 0);
    CHECK_THAT(outcome.err, Catch::Contains("another process"));
    ::close(writer);
  }
  // Behind what an interrupted run left, its last line torn, and on one thread: the same bytes.
  auto begun = ReadCalibration(calib, Env::Default());
  REQUIRE_OK(begun.status());
  const std::vector<LayerCalibration> layers = std::move(begun->layers);
  begun->layers.clear();
  std::string partial = CalibrationToJson(*begun);
  for (int l = 0; l < 5; ++l) partial += LayerCalibrationToLine(layers[static_cast<size_t>(l)]);
  const std::string again = calib + ".again";
  test::WriteFile(again + ".partial", partial.substr(0, partial.size() - 30));
  REQUIRE(Pack(calibrate + again + " --threads 1").status == 0);
  CHECK(test::ReadFile(again) == whole);
  CHECK_FALSE(std::filesystem::exists(again + ".partial"));
  // The leftovers of another calibration are not touched.
  test::WriteFile(calib + ".other.partial", partial);
  outcome = Pack(calibrate + calib + ".other --window 256");
  CHECK(outcome.status != 0);
  CHECK_THAT(outcome.err, Catch::Contains("another calibration"));

  for (const std::string bits : {"2.6", "3.5"}) {
    outcome = Pack("allocate --calibration " + calib + " --bits " + bits + " --name mixed-" + bits +
                   " --out " + Scratch() / ("plan" + bits) + " --picture " +
                   Scratch() / ("plan" + bits + ".svg"));
    INFO(outcome.err);
    REQUIRE(outcome.status == 0);
    CHECK_THAT(outcome.out, Catch::Contains("optimality gap"));
    CHECK_THAT(test::ReadFile(Scratch() / ("plan" + bits + ".svg")), Catch::Contains("</svg>"));
  }
  // The experts that a budget buys fit into it, as memory holds them.
  constexpr int64_t kBudget = 3'200'000;
  outcome = Pack("allocate --calibration " + calib + " --budget " + std::to_string(kBudget) +
                 " --out " + Scratch() / "budgeted");
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
  const auto budgeted = ReadPlan(Scratch() / "budgeted", Env::Default());
  REQUIRE_OK(budgeted.status());
  const auto size = SizeOf(budgeted->model, budgeted->version);
  REQUIRE_OK(size.status());
  CHECK(size->held_bytes <= kBudget);
  CHECK(size->held_bytes > kBudget * 85 / 100);
  CHECK(size->bytes < size->held_bytes);

  outcome = Pack("quantize --model " + TinyModelDir() + " --plan " + Scratch() / "plan2.6" + "," +
                 Scratch() / "plan3.5" + " --out " + Scratch() / "plans");
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
  const Json info = Info(Scratch() / "plans");
  CHECK(info["versions"][0]["name"] == "mixed-3.5");
  CHECK(info["versions"][0]["stored_bits"].get<double>() <= 3.5);
  CHECK(info["versions"][0]["stored_bits"].get<double>() > 3.45);
  CHECK(info["versions"][1]["stored_bits"].get<double>() <= 2.6);
  CHECK(Nll("plans", "mixed-3.5") < Nll("plans", "mixed-2.6"));
  // Resident, or always there beside a cache, a plan takes its own records' pages, not the largest
  // record for each.
  for (const std::string strategy :
       {"resident:scheme=mixed-2.6", "graded:wait=0,hi=mixed-3.5,lo=mixed-2.6"}) {
    outcome = test::RunTool("run",
                            "ppl --model " + TinyModelDir() + tokens +
                                " --limit 512 --quiet --json - --strategy " + strategy +
                                " --experts " + Scratch() / "plans",
                            Scratch());
    INFO(outcome.err);
    REQUIRE(outcome.status == 0);
    const Json run = Json::parse(outcome.out);
    CHECK(run["peak_bytes"] <= run["budget_bytes"]);
    if (strategy[0] == 'n') continue;
    const int64_t stored = info["versions"][1]["bytes"], held = run["pool_bytes"];
    CHECK(held >= stored);
    CHECK(held < stored + 256 * 4096);
    CHECK(held % 4096 == 0);
  }
  // Two plans as the two versions of a strategy: experts move between them and nothing waits; and
  // the calibration that the plans came from says who is high until the first decision.
  for (const std::string strategy :
       {"dynaexq:hi=mixed-3.5,lo=mixed-2.6,hi_fraction=0.25",
        "dynaexq:hi=mixed-3.5,lo=mixed-2.6,hi_fraction=0.25,interval_ms=10000000,calibration="}) {
    const bool fixed = strategy.back() == '=';
    outcome = test::RunTool("run",
                            "ppl --model " + TinyModelDir() + tokens +
                                " --limit 2048 --quiet --json - --step-tokens 1 --clock virtual " +
                                "--budget 6MiB --strategy " + strategy + (fixed ? calib : "") +
                                " --experts " + Scratch() / "plans",
                            Scratch());
    INFO(strategy << outcome.err);
    REQUIRE(outcome.status == 0);
    const Json run = Json::parse(outcome.out);
    CHECK(run["stall_ms"]["total"] == 0);
    CHECK((run["precision"]["promotions"] > 20) == !fixed);
    // A quarter of the experts is high, and used by more than a quarter of the slots.
    CHECK(run["routing"]["hit_ratio_before"] > 0.3);
    CHECK(run["nll"] < Nll("plans", "mixed-2.6"));
  }
}

TEST_CASE("info of a checkpoint and of a file") {
  const Json model = Info(TinyModelDir());
  CHECK(model["kind"] == "checkpoint");
  CHECK(model["model"]["experts"] == 256);
  CHECK(model["schemes"][0]["bytes"] == 8 * 32 * 3 * 128 * 64 * 2);
  const Json file = Info(TinyModelDir() + "/model.safetensors");
  CHECK(file["kind"] == "safetensors");
  CHECK(file["tensors"].size() == 882);
  const Outcome text = Pack("info " + TinyModelDir());
  CHECK(text.status == 0);
  CHECK_THAT(text.out, Catch::Contains("w4a16_g128"));
  CHECK_THAT(text.out, Catch::Contains("shared expert of 128"));
}

TEST_CASE("info of a checkpoint whose experts are in several schemes") {
  const Json info = Info(SourceDir() + "/tests/data/quantized/gptq_some");
  std::map<std::string, int64_t> bytes;
  for (const Json& scheme : info["schemes"]) bytes[scheme["name"]] = scheme["bytes"];
  CHECK(info["stored_scheme"] == "stored");
  CHECK(2 * bytes["stored"] == bytes["w4a16_g128_f16"] + bytes["bf16"]);  // two experts
}

TEST_CASE("info counts every tensor of a checkpoint in one part") {
  for (const std::string& name : test::ArchitectureNames()) {
    INFO(name);
    const Json info = Info(test::ArchitectureDir(name));
    const Json file = Info(test::ArchitectureDir(name) + "/model.safetensors");
    int64_t bytes = 0, tensors = 0;
    std::set<std::string> parts;
    for (const char* fate : {"parts", "left_out"}) {
      for (const Json& p : info[fate]) {
        bytes += p["bytes"].get<int64_t>();
        tensors += p["tensors"].get<int64_t>();
        if (fate == std::string("parts")) parts.insert(p["name"]);
      }
    }
    CHECK(info["unknown"].empty());
    CHECK(info["stray_files"] == Json{"expected.safetensors"});
    int64_t expected = 0;
    for (const Json& t : file["tensors"]) expected += t["bytes"].get<int64_t>();
    CHECK(bytes == expected);
    CHECK(tensors == static_cast<int64_t>(file["tensors"].size()));
    CHECK(parts.count("routed experts") == 1);
    CHECK(parts.count("routers") == 1);
    const bool shared = info["model"]["shared_intermediate"] > 0;
    CHECK(parts.count("shared experts") == (shared ? 1 : 0));
  }
}

TEST_CASE("info plans a budget as the engine does") {
  const Json all = Info(TinyModelDir() + " --budget 100% --rows 16");
  const Json& bf16 = all["schemes"][0]["need"];
  CHECK(bf16["plan"]["slots"] == 256);
  CHECK(bf16["plan"]["budget_bytes"] == bf16["budgets"][0]["bytes"]);
  CHECK(bf16["budgets"][1]["bytes"] < bf16["budgets"][0]["bytes"]);
  const int64_t least = bf16["minimum_bytes"];
  const auto plan = [&](int64_t budget) {
    const std::string flags = " --rows 16 --budget " + std::to_string(budget);
    return Info(TinyModelDir() + flags)["schemes"][0]["need"]["plan"];
  };
  CHECK(plan(least)["fits"] == true);
  CHECK(plan(least - 1)["fits"] == false);
  CHECK_THAT(plan(least - 1)["message"].get<std::string>(), Catch::Contains("below the minimum"));
  const Outcome text = Pack("info " + TinyModelDir() + " --budget 8MiB");
  CHECK_THAT(text.out, Catch::Contains("with --budget 8MiB --strategy on-demand"));
  const Outcome bad = Pack("info " + TinyModelDir() + " --budget lots");
  CHECK(bad.status == 2);
  CHECK_THAT(bad.err, Catch::Contains("--budget"));
  const Outcome strategy = Pack("info " + TinyModelDir() + " --strategy nonsense");
  CHECK(strategy.status == 2);
  CHECK_THAT(strategy.err, Catch::Contains("nonsense"));
}

TEST_CASE("bad arguments and input: status 2, one message on stderr, nothing on stdout") {
  const std::string model = " --model " + TinyModelDir();
  const std::string out = " --out " + Scratch() / "bad";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "usage"},
      {"frobnicate", "'frobnicate' is not a command"},
      {"quantize", "--model"},
      {"quantize" + model + " --schemes bf16", "--out"},
      {"quantize" + model + out, "--schemes"},
      {"quantize" + model + out + " --schemes w5a16", "legal are: bf16"},
      {"quantize" + model + out + " --schemes bf16,bf16", "listed twice"},
      {"quantize" + model + out + " --schemes bf16 --method magic", "rtn"},
      {"quantize" + model + out + " --schemes w4a16_g128 --method gptq", "--tokens"},
      {"quantize" + model + out + " --schemes w4a16_g128 --method gptq --tokens /no/such/file",
       "/no/such/file"},
      {"quantize --model /no/such/model --schemes bf16" + out, "/no/such/model"},
      {"quantize" + model + " --schemes bf16 --out /no/such/folder/p", "/no/such/folder/p"},
      {"quantize" + model + out + " --plan /no/such/plan", "/no/such/plan"},
      {"cache" + model, "--schemes"},
      {"cache" + model + " --schemes bf16 --method gptq", "rtn"},
      {"cache --model /no/such/model --schemes bf16", "/no/such/model"},
      {"calibrate" + model + out, "--tokens"},
      {"allocate --calibration /no/such/file --bits 3" + out, "/no/such/file"},
      {"allocate --calibration " + TinyModelDir() + "/config.json --bits 3" + out, "config.json"},
      {"info", "PACK"},
      {"info /no/such/thing", "/no/such/thing"},
      {"verify /no/such/pack", "/no/such/pack"},
      {"verify " + TinyModelDir(), "moert.json"},
  };
  for (const auto& [args, message] : cases) {
    const Outcome outcome = Pack(args);
    INFO(args << "\nstderr: " << outcome.err);
    CHECK(outcome.status == 2);
    CHECK(outcome.out.empty());
    CHECK_THAT(outcome.err, Catch::Contains(message));
  }
  REQUIRE(Pack(Quantize("twice", "bf16")).status == 0);
  const Outcome again = Pack(Quantize("twice", "bf16"));
  CHECK(again.status != 0);
  CHECK_THAT(again.err, Catch::Contains("already exists"));
}

}  // namespace
}  // namespace moert
