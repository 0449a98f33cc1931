// Checkpoints whose files are well formed and have hostile values: configurations of every family,
// what ModelOpt and publishers write beside config.json, headers, indices, shards without one and
// tables of experts by token. Each is refused with an error that is the input's fault, or read.
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "fuzz/fuzz.h"
#include "host/generation_config.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/router.h"
#include "moert/thread_pool.h"
#include "support/catch.h"
#include "support/edit_checkpoint.h"
#include "support/hostile_values.h"
#include "support/paths.h"
#include "support/quantized_fixture.h"
#include "support/small_inputs.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using nlohmann::json;
using test::Attack;
using test::Dump;
using test::ReadFile;
using test::ReadQuantized;
using test::TempDir;
using test::WriteFile;

const std::string kData = SourceDir() + "/tests/data/";

absl::Status ReadConfig(const std::string& text) {
  return ParseHfConfig(text, "config.json").status();
}

TEST_CASE("configurations") {
  int refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kData + "architectures")) {
    if (!entry.is_directory()) continue;
    const json config = json::parse(ReadFile(entry.path().string() + "/config.json"));
    refused += Attack(entry.path().filename(), config, 150, Dump, ReadConfig);
  }
  CHECK(refused > 500);
}

// Families known by a description alone, and fields that only published files have.
TEST_CASE("configurations of all families, as classes have them by default and as published") {
  int read = 0, refused = 0;
  for (const char* file : {"configs.json", "published.json"}) {
    const auto all =
        JsonDocument::Parse(ReadFile(kData + "families/" + file), file, {.not_finite = true});
    REQUIRE_OK(all.status());
    for (const JsonMember& model : all->root().members()) {
      // Infinity, which some have, is no JSON for those who change values here.
      const json config = json::parse(model.value.Find("config")->text(), nullptr, false);
      if (config.is_discarded() || model.value.Find("refused")) continue;
      ++read;
      refused += Attack(*model.key.AsString(), config, 30, Dump, ReadConfig);
    }
  }
  CHECK(read > 100);
  CHECK(refused > 1500);
}

struct Split {
  json header;
  std::string data;
};

Split ReadSplit(const std::string& path) {
  const std::string file = ReadFile(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  return {json::parse(file.substr(sizeof(length), length)), file.substr(sizeof(length) + length)};
}

TEST_CASE("quantized checkpoints: headers and configurations") {
  int refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kData + "quantized")) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename();
    const std::string config = ReadFile(entry.path().string() + "/config.json");
    const auto [header, data] = ReadSplit(entry.path().string() + "/model.safetensors");
    const auto make = [&data = data](const json& value) {
      return test::Safetensors(value.dump(), data);
    };
    const std::string file = make(header);
    refused += Attack(name + " header", header, 60, make,
                      [&](const std::string& bytes) { return ReadQuantized(config, bytes); });
    refused += Attack(name + " config", json::parse(config), 60, Dump,
                      [&](const std::string& bytes) { return ReadQuantized(bytes, file); });
  }
  CHECK(refused > 700);
}

TEST_CASE("hf_quant_config.json alone, and shards without an index") {
  TempDir dir;
  const std::string fixture = test::QuantizedDir("modelopt_mixed");
  json config = json::parse(ReadFile(fixture + "/config.json"));
  json own = config["quantization_config"];
  own.erase("quant_method");
  config.erase("quantization_config");
  WriteFile(dir / "config.json", config.dump());
  const std::string beside = dir / "hf_quant_config.json";
  const json intact = {{"producer", {{"name", "modelopt"}}}, {"quantization", own}};
  WriteFile(beside, intact.dump());
  test::EditCheckpoint first = test::ReadForEdit(fixture), second;
  while (second.size() < first.size()) second.insert(first.extract(std::prev(first.end())));
  WriteFile(dir / "model-00001-of-00002.safetensors", test::ToSafetensors(first));
  const std::string last = dir / "model-00002-of-00002.safetensors";
  WriteFile(last, test::ToSafetensors(second));
  const auto read = [&](const std::string& path) -> test::Reader {
    return [&dir, path](const std::string& bytes) {
      WriteFile(path, bytes);
      return test::RecordsIn(dir.path()).status();
    };
  };
  CHECK(Attack("hf_quant_config", intact, 400, Dump, read(beside)) > 150);
  WriteFile(beside, intact.dump());
  const auto [header, data] = ReadSplit(last);
  CHECK(Attack(
            "numbered shard", header, 300,
            [&data = data](const json& value) { return test::Safetensors(value.dump(), data); },
            read(last)) > 150);
}

TEST_CASE("indices of shards") {
  const TempDir dir;
  const std::string shard = ReadFile(SourceDir() + "/tests/fuzz/corpus/safetensors/all_types");
  WriteFile(dir / "model-00001.safetensors", shard);
  WriteFile(dir / "model-00002.safetensors", shard);
  const auto whole = Checkpoint::Open(dir / "model-00001.safetensors");
  REQUIRE_OK(whole.status());
  json map;
  for (const TensorInfo& t : (*whole)->tensors()) {
    map[std::string(t.name)] = fmt::format("model-0000{}.safetensors", map.size() % 2 + 1);
  }
  const json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", map}};
  CHECK(Attack("index", index, 300, Dump, [&](const std::string& bytes) -> absl::Status {
          WriteFile(dir / "model.safetensors.index.json", bytes);
          const auto read = Checkpoint::Open(dir.path());
          if (!read.ok()) return read.status();
          for (const TensorInfo& t : (*read)->tensors()) {
            std::vector<std::byte> tensor(static_cast<size_t>(t.bytes));
            const absl::Status status = (*read)->ReadBytes(t, 0, absl::MakeSpan(tensor));
            if (!status.ok()) return status;
          }
          return absl::OkStatus();
        }) > 150);
}

// An engine asks for the same before its first step.
absl::Status ReadRouters(const std::string& dir) {
  MOERT_ASSIGN_OR_RETURN(const HfConfig config, LoadHfConfig(dir));
  MOERT_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(dir));
  MOERT_ASSIGN_OR_RETURN(const auto experts, CheckpointExperts::Create(checkpoint.get(), &config));
  std::vector<LayerConstants> constants;
  for (int l = 0; l < config.moe.num_layers(); ++l) {
    MOERT_ASSIGN_OR_RETURN(LayerConstants c, experts->ReadConstants(l));
    constants.push_back(std::move(c));
  }
  std::vector<RouterConstants> layers;
  for (const LayerConstants& c : constants) layers.push_back(RouterConstants::Of(c));
  MOERT_ASSIGN_OR_RETURN(const auto pool, CreateThreadPool({.threads = 1}));
  return Router::Create(&config.moe, std::move(layers), pool.get()).status();
}

constexpr char kTable[] = "layers.0.ffn.gate.tid2eid";

TEST_CASE("experts by token: the table's header, and the configuration that gives its size") {
  TempDir dir;
  const std::string fixture = kData + "architectures/deepseek_v4";
  const std::string config = ReadFile(fixture + "/config.json");
  WriteFile(dir / "config.json", config);
  const auto [header, data] = ReadSplit(fixture + "/model.safetensors");
  const auto make = [&header = header, &data = data](const json& table) {
    json all = header;
    all[kTable] = table;
    return test::Safetensors(all.dump(), data);
  };
  REQUIRE(header.contains(kTable));
  CHECK(Attack("table", header[kTable], 300, make, [&](const std::string& bytes) {
          WriteFile(dir / "model.safetensors", bytes);
          return ReadRouters(dir.path());
        }) > 100);
  WriteFile(dir / "model.safetensors", make(header[kTable]));
  CHECK(Attack("config of a table", json::parse(config), 300, Dump, [&](const std::string& bytes) {
          WriteFile(dir / "config.json", bytes);
          return ReadRouters(dir.path());
        }) > 150);
}

TEST_CASE("experts by token: what the table says") {
  TempDir dir;
  const std::string fixture = kData + "architectures/deepseek_v4";
  WriteFile(dir / "config.json", ReadFile(fixture + "/config.json"));
  test::EditCheckpoint tensors = test::ReadForEdit(fixture);
  test::EditTensor& table = tensors.at(kTable);
  const std::string intact = table.bytes;
  REQUIRE(table.dtype == "I64");
  const int64_t tokens = table.shape[0], k = table.shape[1];
  struct Case {
    int64_t expert;
    const char* message;
  };
  const Case cases[] = {
      {-1, "found -1"},
      {8, "found 8"},
      {INT32_MAX, "found 2147483647"},
      {int64_t{1} << 31, "is 2147483648, legal are 32 bits"},
      {int64_t{1} << 32, "is 4294967296, legal are 32 bits"},  // 0 in 32 bits
      {INT64_MIN, "is -9223372036854775808, legal are 32 bits"},
      {INT64_MAX, "is 9223372036854775807, legal are 32 bits"},
  };
  const auto with = [&](int64_t place, int64_t expert) {
    table.bytes = intact;
    std::memcpy(table.bytes.data() + 8 * place, &expert, sizeof(expert));
    WriteFile(dir / "model.safetensors", test::ToSafetensors(tensors));
    return ReadRouters(dir.path());
  };
  int64_t first = 0;
  std::memcpy(&first, intact.data(), sizeof(first));
  REQUIRE_OK(with(0, first));
  for (const int64_t place : {int64_t{0}, tokens * k - 1}) {
    for (const Case& c : cases) {
      const absl::Status status = with(place, c.expert);
      INFO(place << ": " << c.message << "; " << status.message());
      CHECK(absl::IsInvalidArgument(status));
      CHECK_THAT(std::string(status.message()), Catch::Contains(c.message));
    }
  }
  CHECK_THAT(std::string(with(1, first).message()), Catch::Contains("distinct ones in [0, 8)"));
}

TEST_CASE("generation_config.json, as the library and the example host read it") {
  TempDir dir;
  WriteFile(dir / "config.json", ReadFile(kData + "architectures/xverse/config.json"));
  const json config = {{"do_sample", true},
                       {"eos_token_id", {1, 2}},
                       {"temperature", 0.7},
                       {"top_p", 0.8},
                       {"min_p", 0.05},
                       {"top_k", 20},
                       {"repetition_penalty", 1.05}};
  const std::string path = dir / "generation_config.json";
  CHECK(Attack("tokens that end", config, 200, Dump, [&](const std::string& bytes) {
          WriteFile(path, bytes);
          return LoadHfConfig(dir.path()).status();
        }) > 20);
  CHECK(Attack(
            "sampling", config, 200, Dump,
            [&](const std::string& bytes) {
              WriteFile(path, bytes);
              return host::ReadGenerationConfig(dir.path()).status();
            },
            test::kTree) > 60);
}

TEST_CASE("their number") { test::CheckNumbers(13000, 9500); }

}  // namespace
}  // namespace moert
