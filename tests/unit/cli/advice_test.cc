// Where a model's bytes lie, how fast that is, and what is advised: sums that a person can check.
#include "cli/doctor/advice.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/doctor/model_facts.h"
#include "support/catch.h"
#include "support/gguf_file.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace moert::cli {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// 48 layers, 16 GiB of experts of which a token uses 1 GiB; 2 GiB beside them.
ModelFacts Facts() {
  ModelFacts f;
  f.kind = ModelKind::kCheckpoint;
  f.path = "model";
  f.layers = f.moe_layers = 48;
  f.experts = 128;
  f.top_k = 8;
  f.hidden = 2048;
  f.intermediate = 768;
  f.schemes = {{"w4a16_g128", true, 16 * kGiB, kGiB}};
  f.stored = "gptq int4";
  f.dense_bytes = 2 * kGiB;
  f.dense_token_bytes = kGiB;
  f.context = 4096;
  return f;
}

Rates RatesOf(double link) {
  Rates r;
  r.memory = r.dense = r.experts["w4a16_g128"] = 10.0 * kGiB;
  r.disk = kGiB;
  if (link > 0) {
    DeviceRates device;
    device.link_bytes_per_s = link;
    device.memory_bytes_per_s = 1000.0 * kGiB;
    r.device = device;
  }
  return r;
}

std::string Text(const Advice& advice) {
  std::string text;
  for (const std::string& line : advice.lines) text += line + "\n";
  for (const std::string& line : advice.assumptions) text += line + "\n";
  return text;
}

TEST_CASE("on a CPU: dense bytes and products over their rates, misses over the disk's") {
  const Advice all = Advise(Facts(), {32 * kGiB, 0}, RatesOf(0));
  REQUIRE(all.placements.size() == 1);
  CHECK(all.placements[0].tiers.memory == 1);
  CHECK(all.placements[0].speed.least == Approx(1 / (0.1 + 0.1)));
  CHECK(all.placements[0].speed.most == Approx(1 / (0.1 + 0.1)));
  const Advice half = Advise(Facts(), {10 * kGiB, 0}, RatesOf(0));
  CHECK(half.placements[0].tiers.memory == Approx(0.5));
  CHECK(half.placements[0].speed.least == Approx(1 / (0.2 + 0.5)));
  CHECK(half.placements[0].speed.most == Approx(1 / (0.2 + 1.0 / 16)));
  CHECK_FALSE(Advise(Facts(), {2 * kGiB, 0}, RatesOf(0)).fits);
  Rates slow = RatesOf(0);
  slow.layer_s = 1e-3;  // and what each layer takes beside its products
  CHECK(Advise(Facts(), {32 * kGiB, 0}, slow).placements[0].speed.least ==
        Approx(1 / (0.1 + 0.1 + 0.048)));
}

TEST_CASE("on a GPU: what it lacks comes over the link, or from files where RAM is too small") {
  const double layers = 48 * kDeviceLayerSeconds, memory = kDeviceShare * 1000;
  const Advice all = Advise(Facts(), {32 * kGiB, 24 * kGiB}, RatesOf(20.0 * kGiB));
  REQUIRE(all.on_device);
  CHECK(all.placements[0].tiers.device == 1);
  CHECK(all.placements[0].speed.least == Approx(1 / (layers + 2 / memory)));
  const Advice half = Advise(Facts(), {32 * kGiB, 10 * kGiB}, RatesOf(20.0 * kGiB));
  CHECK(half.placements[0].tiers.device == Approx(0.5));
  CHECK(half.placements[0].tiers.memory == Approx(0.5));
  CHECK(half.placements[0].speed.least == Approx(1 / (layers + 1.5 / memory + 0.5 / 20)));
  CHECK(half.placements[0].speed.most > half.placements[0].speed.least);
  // RAM has room for every record, pinned before the first token.
  CHECK_THAT(Text(half), Catch::Contains("--strategy auto --budget 8192M --host-budget 16641M"));
  CHECK_THAT(Text(all), !Catch::Contains("--host-budget"));
  // A quarter in RAM is another quarter from files.
  const Advice files = Advise(Facts(), {4 * kGiB, 10 * kGiB}, RatesOf(20.0 * kGiB));
  CHECK(files.placements[0].tiers.disk == Approx(0.25));
  CHECK(files.placements[0].speed.least ==
        Approx(1 / (layers + 1.5 / memory + 0.5 / 20 + 0.25 / 1)));
  CHECK_THAT(Text(files), !Catch::Contains("--host-budget"));
  // RAM for half of the records and more is filled as far as it goes.
  const Advice most = Advise(Facts(), {12 * kGiB, 10 * kGiB}, RatesOf(20.0 * kGiB));
  CHECK_THAT(Text(most), Catch::Contains("--strategy auto --budget 8192M --host-budget 12288M"));
  // The dense parts do not fit the card: the CPU.
  const Advice small = Advise(Facts(), {32 * kGiB, kGiB}, RatesOf(20.0 * kGiB));
  CHECK_FALSE(small.on_device);
  CHECK_THAT(Text(small), Catch::Contains("the CPU runs the model"));
  // A rate that was not measured here is named.
  CHECK_THAT(Text(half),
             Catch::Contains("not measured here: ") && Catch::Contains("as on an H200"));
}

TEST_CASE("without a rate no speed is promised") {
  Rates rates = RatesOf(0);
  rates.disk = 0;
  const Advice advice = Advise(Facts(), {10 * kGiB, 0}, rates);
  CHECK(advice.placements[0].speed.least == 0);
  CHECK(advice.placements[0].speed.most == 0);
  CHECK_THAT(Text(advice), Catch::Contains("not known") && Catch::Contains("files not measured"));
}

TEST_CASE("what a publisher has quantized is never widened or rounded again") {
  int fixtures = 0, mixed_fixtures = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(SourceDir() + "/tests/data/quantized")) {
    if (!entry.is_directory()) continue;
    INFO(entry.path());
    const auto facts = ReadModelFacts(entry.path().string(), 512);
    REQUIRE_OK(facts.status());
    ++fixtures;
    CHECK(facts->kind == ModelKind::kCheckpoint);
    CHECK_FALSE(facts->stored.empty());
    REQUIRE(facts->schemes.size() == 1);
    CHECK(facts->schemes[0].stored);
    CHECK(facts->schemes[0].scheme != "bf16");
    for (const int64_t room : {kGiB, int64_t{1} << 19}) {
      CHECK_THAT(Text(Advise(*facts, {room, 0}, RatesOf(0))), !Catch::Contains("--as"));
    }
    // The same from config.json alone: the same scheme, about the same bytes.
    const test::TempDir dir;
    std::filesystem::copy_file(entry.path() / "config.json", dir / "config.json");
    const auto config = ReadModelFacts(dir.path(), 512);
    REQUIRE_OK(config.status());
    CHECK(config->kind == ModelKind::kConfig);
    // Only the tensors say which experts are stored otherwise than most.
    const bool mixed = facts->schemes[0].scheme == "stored";
    CHECK((mixed || config->schemes[0].scheme == facts->schemes[0].scheme));
    CHECK((mixed || config->schemes[0].bytes == facts->schemes[0].bytes));
    mixed_fixtures += mixed;
  }
  CHECK(fixtures >= 12);
  CHECK(mixed_fixtures == 3);
}

TEST_CASE("a GGUF: llama.cpp, with the plug-in where it does not fit") {
  const test::TempDir dir;
  const std::string path = dir / "m.gguf";
  test::WriteFile(path, test::TinyGguf().Bytes());
  const auto facts = ReadModelFacts(path, 4096);
  REQUIRE_OK(facts.status());
  CHECK(facts->context == 512);
  CHECK(facts->moe_layers == 2);
  CHECK(facts->schemes[0].scheme == "Q4_0");
  CHECK(facts->schemes[0].token_bytes == facts->schemes[0].bytes / 4);
  CHECK(facts->dense_bytes - facts->dense_token_bytes == 64 * 100 * 4);  // the embedding's table
  CHECK(facts->kv_bytes == 2 * 2 * 4 * (16 + 16) * 512);
  Rates rates = RatesOf(0);
  rates.experts = {{"Q4_0", 1e9}};
  const std::string fits = Text(Advise(*facts, {kGiB, 0}, rates));
  CHECK_THAT(fits, Catch::Contains("stock llama.cpp is as fast") &&
                       Catch::Contains("llama-server -m " + path) &&
                       !Catch::Contains("GGML_BACKEND_PATH"));
  const int64_t less = facts->dense_bytes + facts->kv_bytes + facts->schemes[0].bytes / 2;
  CHECK_THAT(Text(Advise(*facts, {less, 0}, rates)), Catch::Contains("GGML_BACKEND_PATH"));
}

TEST_CASE("beside a GPU Python pins all, or what RAM has room for") {
  ModelFacts facts = Facts();
  facts.stored.clear();
  CHECK_THAT(Text(Advise(facts, {32 * kGiB, 10 * kGiB}, RatesOf(20.0 * kGiB))),
             Catch::Contains("device=\"cuda\", host_budget=\"all\")"));
  CHECK_THAT(Text(Advise(facts, {12 * kGiB, 10 * kGiB}, RatesOf(20.0 * kGiB))),
             Catch::Contains("device=\"cuda\", host_budget=12884901888)"));
  CHECK_THAT(Text(Advise(facts, {8 * kGiB, 10 * kGiB}, RatesOf(20.0 * kGiB))),
             !Catch::Contains("host_budget"));
}

TEST_CASE("floats: as stored first, then the widest scheme that fits") {
  ModelFacts facts = Facts();
  facts.stored.clear();
  facts.schemes = {{"bf16", true, 60 * kGiB, 4 * kGiB},
                   {"w8a16_g128", false, 32 * kGiB, 2 * kGiB},
                   {"w4a16_g128", false, 16 * kGiB, kGiB}};
  Rates rates = RatesOf(0);
  rates.experts["bf16"] = rates.experts["w8a16_g128"] = 10.0 * kGiB;
  const std::string text = Text(Advise(facts, {24 * kGiB, 0}, rates));
  CHECK_THAT(text, Catch::Contains("exactly as published") && Catch::Contains("bf16 *") &&
                       Catch::Contains("--as w4a16_g128 --strategy resident"));
  const std::string large = Text(Advise(facts, {100 * kGiB, 0}, rates));
  CHECK_THAT(large, !Catch::Contains("--as"));
}

}  // namespace
}  // namespace moert::cli
