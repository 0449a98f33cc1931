// Every tensor of a checkpoint is used, left out for a reason, or refused by name: all fixtures of
// tests/data/architectures, as they are and with tensors beside them that no model has.
#include "moert/offline/tensor_account.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint_experts.h"
#include "support/architecture_fixture.h"
#include "support/edit_checkpoint.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::ArchitectureDir;
using test::ArchitectureNames;
using test::EditCheckpoint;
using test::EditTensor;
using test::TempDir;

/// Notes which bytes of a file are read.
class NotedFile final : public RandomAccessFile {
 public:
  using Ranges = std::map<int64_t, int64_t>;  // begin -> end
  NotedFile(std::unique_ptr<RandomAccessFile> file, Ranges* ranges)
      : file_(std::move(file)), ranges_(ranges) {}
  absl::Status Read(int64_t offset, absl::Span<std::byte> dst) const override {
    int64_t& end = (*ranges_)[offset];
    end = std::max(end, offset + static_cast<int64_t>(dst.size()));
    return file_->Read(offset, dst);
  }
  int64_t size() const override { return file_->size(); }
  const std::string& path() const override { return file_->path(); }

 private:
  const std::unique_ptr<RandomAccessFile> file_;
  Ranges* const ranges_;
};

class NotingEnv final : public Env {
 public:
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(const std::string& path,
                                                         FileAccess access) override {
    auto file = Env::Default()->Open(path, access);
    if (!file.ok()) return file.status();
    return std::make_unique<NotedFile>(*std::move(file), &ranges);
  }
  NotedFile::Ranges ranges;
};

HfConfig ConfigOf(const std::string& dir) {
  auto config = LoadHfConfig(dir);
  REQUIRE_OK(config.status());
  return *std::move(config);
}

/// Reads everything of a model: each expert's record, the layers' constants, the decoder.
void ReadAll(const Checkpoint& checkpoint, const HfConfig& config) {
  const auto experts = CheckpointExperts::Create(&checkpoint, &config);
  REQUIRE_OK(experts.status());
  for (int l = 0; l < config.moe.num_layers(); ++l) {
    const MoeLayerSpec& layer = config.moe.layers[static_cast<size_t>(l)];
    for (int e = 0; e < layer.num_experts; ++e) {
      const auto layout = ExpertRecordLayout(layer, (*experts)->stored(l, e));
      REQUIRE_OK(layout.status());
      std::vector<std::byte> record(static_cast<size_t>(layout->bytes));
      REQUIRE_OK((*experts)->ReadRecord(l, e, *layout, record.data()));
    }
    REQUIRE_OK((*experts)->ReadConstants(l).status());
  }
  const auto pool = CreateThreadPool({.threads = 1});
  REQUIRE_OK(pool.status());
  REQUIRE_OK(host::Decoder::Load(checkpoint, config, pool->get(), nullptr).status());
}

TEST_CASE("every tensor of a fixture is used, and what is used is what is read") {
  const std::string name = GENERATE(from_range(ArchitectureNames()));
  INFO(name);
  const HfConfig config = ConfigOf(ArchitectureDir(name));
  NotingEnv env;
  const auto checkpoint = Checkpoint::Open(ArchitectureDir(name), &env);
  REQUIRE_OK(checkpoint.status());
  const auto account = AccountForTensors(**checkpoint, config);
  REQUIRE_OK(account.status());
  CHECK(account->size() == (*checkpoint)->tensors().size());
  env.ranges.clear();
  ReadAll(**checkpoint, config);
  for (const AccountedTensor& a : *account) {
    INFO(a.tensor->name << ": " << a.what);
    const auto next = env.ranges.lower_bound(a.tensor->offset + a.tensor->bytes);
    const bool read = next != env.ranges.begin() && std::prev(next)->second > a.tensor->offset;
    CHECK(read == (a.fate == TensorFate::kUsed));
    CHECK(a.fate != TensorFate::kUnknown);
  }
  CHECK(StrayFiles(**checkpoint) == std::vector<std::string>{"expected.safetensors"});
}

/// A fixture with other tensors.
struct Edited {
  Edited(const std::string& name, const EditCheckpoint& tensors) {
    std::filesystem::copy_file(ArchitectureDir(name) + "/config.json", dir / "config.json");
    test::WriteFile(dir / "model.safetensors", test::ToSafetensors(tensors));
    config = ConfigOf(dir.path());
    auto opened = Checkpoint::Open(dir.path());
    REQUIRE_OK(opened.status());
    checkpoint = *std::move(opened);
  }
  TempDir dir;
  HfConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
};

std::string FirstExpert(const EditCheckpoint& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (name.find(".experts.") != std::string::npos) return name;
  }
  FAIL("no expert");
  return "";
}

/// The name in front of ".weight", "_blocks", ...
std::string Base(const std::string& name) {
  for (const char* suffix : {".weight", "_blocks", "_scales", "_bias"}) {
    const size_t at = name.rfind(suffix);
    if (at != std::string::npos) return name.substr(0, at);
  }
  return name;
}

TEST_CASE("experts of other modules are left out by name, and change nothing") {
  const std::string name = GENERATE(from_range(ArchitectureNames()));
  const EditCheckpoint original = test::ReadForEdit(ArchitectureDir(name));
  const HfConfig config = ConfigOf(ArchitectureDir(name));
  const std::string expert = FirstExpert(original);
  const std::string prefix = config.tensor_body + "layers.";
  REQUIRE(expert.rfind(prefix, 0) == 0);
  const std::string within = expert.substr(expert.find('.', prefix.size()));
  EditTensor other = original.at(expert);
  std::fill(other.bytes.begin(), other.bytes.end(), '\1');
  struct Decoy {
    std::string name;
    const char* why;
  };
  const Decoy decoys[] = {
      {"talker." + expert, "of another module, talker"},
      {"mtp.layers.0" + within, "of another module, mtp"},
      {config.tensor_prefix + "model.vision_tower.layers.0" + within,
       "of another module, vision_tower"},
      {prefix + std::to_string(config.num_hidden_layers) + within, "predicts further tokens"},
      {expert + ".input_scale", "activations are rounded"},
  };
  EditCheckpoint tensors = original;
  for (const Decoy& decoy : decoys) tensors[decoy.name] = other;
  const Edited edited(name, tensors);
  const auto account = AccountForTensors(*edited.checkpoint, edited.config);
  REQUIRE_OK(account.status());
  for (const AccountedTensor& a : *account) {
    INFO(name << ": " << a.tensor->name << ": " << a.what);
    const auto decoy = std::find_if(std::begin(decoys), std::end(decoys),
                                    [&](const Decoy& d) { return d.name == a.tensor->name; });
    CHECK(a.fate == (decoy == std::end(decoys) ? TensorFate::kUsed : TensorFate::kLeftOut));
    if (decoy != std::end(decoys)) CHECK_THAT(a.what, Catch::Contains(decoy->why));
  }
  CHECK(CheckTensors(*edited.checkpoint, edited.config).ok());

  const auto plain = Checkpoint::Open(ArchitectureDir(name));
  REQUIRE_OK(plain.status());
  const auto before = CheckpointExperts::Create(plain->get(), &config);
  const auto after = CheckpointExperts::Create(edited.checkpoint.get(), &edited.config);
  REQUIRE_OK(before.status());
  REQUIRE_OK(after.status());
  const auto layout = ExpertRecordLayout(config.moe.layers[0], (*before)->stored(0, 0));
  std::vector<std::byte> a(static_cast<size_t>(layout->bytes)), b(a.size());
  REQUIRE_OK((*before)->ReadRecord(0, 0, *layout, a.data()));
  REQUIRE_OK((*after)->ReadRecord(0, 0, *layout, b.data()));
  CHECK(a == b);
}

TEST_CASE("what lies beside an expert and nothing reads is refused by name") {
  const std::string name = GENERATE(from_range(ArchitectureNames()));
  const EditCheckpoint original = test::ReadForEdit(ArchitectureDir(name));
  const std::string base = Base(FirstExpert(original));
  const HfConfig config = ConfigOf(ArchitectureDir(name));
  const std::string block = absl::StrReplaceAll(
      config.names.ExpertsPrefix(config.moe.layers[0].model_layer), {{"experts.", ""}});
  const EditTensor vector = {"BF16", {4}, std::string(8, 0)};
  std::vector<std::string> strays = {base + ".bias", base + ".scale", base + ".weight_zero_point",
                                     block + "experts.scores"};
  // Experts that are no part of a block lie beside all else that the layer has.
  if (config.names.blocks.empty()) strays.push_back(block + "router_temperature");
  for (const std::string& stray : strays) {
    INFO(name << ": " << stray);
    REQUIRE(original.count(stray) == 0);
    EditCheckpoint tensors = original;
    tensors[stray] = vector;
    const Edited edited(name, tensors);
    for (const absl::Status& status :
         {CheckpointExperts::Create(edited.checkpoint.get(), &edited.config).status(),
          CheckTensors(*edited.checkpoint, edited.config)}) {
      CHECK(status.code() == absl::StatusCode::kInvalidArgument);
      CHECK_THAT(std::string(status.message()), Catch::Contains("\"" + stray + "\""));
    }
  }
}

TEST_CASE("what lies beside attention and nothing reads stops the decoder") {
  const std::string name = GENERATE(from_range(ArchitectureNames()));
  const EditCheckpoint original = test::ReadForEdit(ArchitectureDir(name));
  const HfConfig config = ConfigOf(ArchitectureDir(name));
  const std::string stray = config.tensor_prefix + "model.layers.0.self_attn.o_proj.zero";
  EditCheckpoint tensors = original;
  tensors[stray] = {"BF16", {4}, std::string(8, 0)};
  const Edited edited(name, tensors);
  INFO(name);
  // The experts are whole: they may be served to another decoder.
  REQUIRE_OK(CheckpointExperts::Create(edited.checkpoint.get(), &edited.config).status());
  const absl::Status status = CheckTensors(*edited.checkpoint, edited.config);
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Catch::Contains("\"" + stray + "\""));
}

TEST_CASE("tensors of a type that is not known are left out, or refused where they are needed") {
  EditCheckpoint tensors = test::ReadForEdit(ArchitectureDir("qwen3_moe"));
  tensors["model.visual.patch.weight"] = {"F6_E2M3", {4}, std::string(3, 0)};
  const Edited edited("qwen3_moe", tensors);
  const auto account = AccountForTensors(*edited.checkpoint, edited.config);
  REQUIRE_OK(account.status());
  const auto other = std::find_if(account->begin(), account->end(), [](const AccountedTensor& a) {
    return a.tensor->name == "model.visual.patch.weight";
  });
  REQUIRE(other != account->end());
  CHECK(other->fate == TensorFate::kLeftOut);
  ReadAll(*edited.checkpoint, edited.config);

  const std::string expert = FirstExpert(tensors);
  tensors[expert].dtype = "F4";
  const Edited needed("qwen3_moe", tensors);
  const absl::Status status =
      CheckpointExperts::Create(needed.checkpoint.get(), &needed.config).status();
  CHECK(absl::IsUnimplemented(status));
  CHECK_THAT(std::string(status.message()),
             Catch::Contains(expert) && Catch::Contains("its type \"F4\" is not read"));
}

TEST_CASE("tensors and files beside an index are named") {
  const EditCheckpoint all = test::ReadForEdit(ArchitectureDir("mixtral"));
  TempDir dir;
  std::filesystem::copy_file(ArchitectureDir("mixtral") + "/config.json", dir / "config.json");
  EditCheckpoint shard = all;
  nlohmann::json map;
  for (const auto& [name, tensor] : all) map[name] = "a.safetensors";
  shard["model.layers.0.extra"] = {"BF16", {4}, std::string(8, 0)};
  test::WriteFile(dir / "a.safetensors", test::ToSafetensors(shard));
  test::WriteFile(dir / "consolidated.safetensors", test::ToSafetensors(all));
  test::WriteFile(dir / "model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  const auto checkpoint = Checkpoint::Open(dir.path());
  REQUIRE_OK(checkpoint.status());
  CHECK((*checkpoint)->unlisted() == std::vector<std::string>{"model.layers.0.extra"});
  CHECK(StrayFiles(**checkpoint) == std::vector<std::string>{"consolidated.safetensors"});
  CHECK(CheckTensors(**checkpoint, ConfigOf(dir.path())).ok());
}

}  // namespace
}  // namespace moert
