// The tools over damaged models: each run reads what is there or ends with status 2 and one
// message, never by a signal. (10,000 files in one process: unit/pack/damaged_files_test.cc.)
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "support/catch.h"
#include "support/mutate.h"
#include "support/paths.h"
#include "support/run_tool.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::Outcome;
using test::ReadFile;
using test::TempDir;
using test::WriteFile;

struct Counts {
  int refused = 0, read = 0;
};

/// A command over a damaged model reads it, or refuses it with a message.
void RunDamaged(const char* tool, const std::string& command, const TempDir& scratch,
                Counts* counts) {
  const Outcome outcome = test::RunTool(tool, command, scratch);
  INFO(command << "\n" << outcome.err);
  REQUIRE((outcome.status == 0 || outcome.status == 2));
  ++(outcome.status == 2 ? counts->refused : counts->read);
  if (outcome.status == 2) REQUIRE_FALSE(outcome.err.empty());
}

std::string Tokens(const TempDir& scratch) {
  std::string tokens;
  for (int i = 0; i < 16; ++i) tokens += {static_cast<char>(7 * i % 128), '\0'};
  WriteFile(scratch / "tokens.u16", tokens);
  return " --tokens " + scratch / "tokens.u16" + " --window 8 --threads 1 --quiet";
}

TEST_CASE("damaged checkpoints: status 0 or 2, and 2 comes with a message") {
  // Plain ones, experts by token, blocks of MXFP4, all linear layers in GPTQ or FP8, nested fields.
  const char* const models[] = {"xverse",        "xverse",       "xverse", "deepseek_v4",
                                "xverse",        "gpt_oss",      "xverse", "deepseek_v3_gptq",
                                "qwen3_moe_fp8", "minimax_m3_vl"};
  TempDir scratch, dir, cache;
  const std::string tokens = Tokens(scratch);
  test::Mutator mutator(11);
  Counts counts;
  for (int i = 0; i < 100; ++i) {
    const std::string model =
        SourceDir() + "/tests/data/architectures/" + models[i / 2 % std::size(models)];
    const std::string name = i % 2 == 0 ? "config.json" : "model.safetensors";
    const std::string other = i % 2 == 0 ? "model.safetensors" : "config.json";
    WriteFile(dir / name, mutator.Damage(ReadFile(model + "/" + name)));
    WriteFile(dir / other, ReadFile(model + "/" + other));
    if (i % 3 == 0) {
      RunDamaged("pack", "info " + dir.path() + " --budget 8MiB", scratch, &counts);
    } else {
      RunDamaged("run", "ppl --model " + dir.path() + " --cache " + cache.path() + tokens, scratch,
                 &counts);
    }
  }
  CHECK(counts.refused > 60);
  CHECK(counts.read > 2);
}

TEST_CASE("damaged files beside a configuration: status 0 or 2, and 2 comes with a message") {
  const std::string fixture = SourceDir() + "/tests/data/quantized/nvfp4_modelopt";
  TempDir scratch, dir;
  const std::string config = ReadFile(fixture + "/config.json");
  const size_t own = config.find(",\n \"quantization_config\"");
  REQUIRE(own != std::string::npos);
  WriteFile(dir / "config.json", config.substr(0, own) + "}");
  WriteFile(dir / "model-00001-of-00001.safetensors", ReadFile(fixture + "/model.safetensors"));
  const std::pair<std::string, std::string> files[] = {
      {dir / "hf_quant_config.json",
       R"({"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["a"]}})"},
      {dir / "generation_config.json", R"({"do_sample": true, "eos_token_id": [1, 2]})"},
  };
  for (const auto& [path, text] : files) WriteFile(path, text);
  const std::string command =
      "quantize --force --schemes nvfp4 --model " + dir.path() + " --out " + scratch / "pack";
  Counts counts;
  RunDamaged("pack", command, scratch, &counts);
  REQUIRE(counts.read == 1);
  test::Mutator mutator(12);
  for (const auto& [path, text] : files) {
    for (int i = 0; i < 15; ++i) {
      WriteFile(path, mutator.Damage(text));
      RunDamaged("pack", command, scratch, &counts);
    }
    WriteFile(path, text);
  }
  CHECK(counts.refused > 15);
  CHECK(counts.read > 1);
}

TEST_CASE("a Git LFS pointer: status 2 from every tool that opens checkpoints") {
  const std::string model = SourceDir() + "/tests/data/architectures/xverse";
  TempDir scratch, dir;
  WriteFile(dir / "config.json", ReadFile(model + "/config.json"));
  WriteFile(dir / "model.safetensors",
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
  WriteFile(scratch / "tokens.u16", std::string(32, '\0'));
  const std::pair<const char*, std::string> commands[] = {
      {"run", "ppl --model " + dir.path() + " --window 8 --tokens " + scratch / "tokens.u16"},
      {"pack", "info " + dir.path()},
      {"pack", "quantize --model " + dir.path() + " --out " + scratch / "pack --schemes bf16"},
      {"pack", "calibrate --model " + dir.path() + " --tokens " + scratch / "tokens.u16" +
                   " --schemes w4a16_g128 --out " + scratch / "calibration"},
  };
  for (const auto& [tool, command] : commands) {
    const Outcome outcome = test::RunTool(tool, command, scratch);
    INFO(tool << " " << command << "\n" << outcome.err);
    CHECK(outcome.status == 2);
    CHECK_THAT(outcome.err, Catch::Contains("git lfs pull"));
  }
}

TEST_CASE("tokens that never end, or never begin, are refused at once") {
  const std::string model = SourceDir() + "/tests/data/architectures/xverse";
  TempDir scratch;
  REQUIRE(::mkfifo((scratch / "pipe.u16").c_str(), 0600) == 0);
  REQUIRE(::mkfifo((scratch / "pipe.txt").c_str(), 0600) == 0);
  REQUIRE(::symlink("/dev/zero", (scratch / "zero.u16").c_str()) == 0);
  const std::pair<std::string, const char*> tokens[] = {
      {"/dev/zero", "is neither a file nor a pipe"},
      {scratch / "zero.u16", "is neither a file nor a pipe"},
      {scratch / "pipe.u16", "is a pipe that nobody writes to"},
      {scratch / "pipe.txt", "is a pipe that nobody writes to"},
  };
  for (const auto& [path, why] : tokens) {
    const Outcome outcome = test::RunTool(
        "run", "ppl --model " + model + " --quiet --cache " + scratch.path() + " --tokens " + path,
        scratch);
    INFO(path << "\n" << outcome.err);
    CHECK(outcome.status == 2);
    CHECK_THAT(outcome.err, Catch::Contains(why));
  }
}

TEST_CASE("a configuration that is not read is status 2 of info, which shows the parts") {
  const std::string model = SourceDir() + "/tests/data/architectures/xverse";
  TempDir scratch, dir;
  WriteFile(dir / "config.json", R"({"model_type":")" + std::string(200'000, 'x') + "\"}");
  WriteFile(dir / "model.safetensors", ReadFile(model + "/model.safetensors"));
  const Outcome outcome = test::RunTool("pack", "info " + dir.path(), scratch);
  INFO(outcome.out << outcome.err);
  CHECK(outcome.status == 2);
  CHECK_THAT(outcome.out, Catch::Contains("not read: ") && Catch::Contains("routed experts"));
  CHECK(outcome.out.size() + outcome.err.size() < 8000);
}

TEST_CASE("a report is not written through a link") {
  TempDir scratch;
  WriteFile(scratch / "mine", "keep");
  REQUIRE(::symlink((scratch / "mine").c_str(), (scratch / "link").c_str()) == 0);
  const Outcome outcome = test::RunTool("run", "list --force --json " + scratch / "link", scratch);
  CHECK(outcome.status != 0);
  CHECK(ReadFile(scratch / "mine") == "keep");
}

}  // namespace
}  // namespace moert
