// 10,000 damaged files of every kind that is read: each is refused with an error that is the
// input's fault, or read correctly; never a signal, never more than twice the memory of the intact
// file.
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "base/bf16.h"
#include "fuzz/fuzz.h"
#include "host/tokenizer.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/offline/plan.h"
#include "moert/source/expert_source.h"
#include "moert/tools/profile.h"
#include "moert/tools/trace.h"
#include "support/catch.h"
#include "support/heap_peak.h"
#include "support/mutate.h"
#include "support/paths.h"
#include "support/record_buffer.h"
#include "support/small_inputs.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using nlohmann::json;
using test::Mutator;
using test::ReadFile;
using test::ReadQuantized;
using test::TempDir;
using test::WriteFile;

const std::string kData = SourceDir() + "/tests/data/";
const std::string kModel = kData + "architectures/xverse";

// Reads `bytes`; OK means that they were read and that what was read was found correct.
using Reader = std::function<absl::Status(const std::string& bytes)>;

struct Tally {
  int refused = 0, read = 0;
};

// `source`: what the intact file is read from, for messages of failures.
Tally DamageMany(const std::string& intact, int count, uint64_t seed, const Reader& read) {
  REQUIRE_OK(read(intact));  // also fills what is made once
  const auto used = [&](const std::string& bytes, absl::Status* status) {
    const test::HeapPeak heap;
    *status = read(bytes);
    return heap.bytes();
  };
  absl::Status status;
  const int64_t usual = used(intact, &status);
  REQUIRE_OK(status);
  const int64_t most = 2 * std::max(usual, static_cast<int64_t>(intact.size())) + 65536;
  Mutator mutator(seed);
  Tally tally;
  for (int i = 0; i < count; ++i) {
    const std::string damaged = mutator.Damage(intact);
    const int64_t bytes = used(damaged, &status);
    INFO("seed " << seed << " file " << i << ": " << std::string(status.message()));
    REQUIRE(bytes <= most);
    if (status.ok()) {
      ++tally.read;
      continue;
    }
    // Internal and unknown errors are the library's; the tools exit with status 1 for them.
    REQUIRE(status.code() != absl::StatusCode::kInternal);
    REQUIRE(status.code() != absl::StatusCode::kUnknown);
    REQUIRE(!status.message().empty());
    ++tally.refused;
  }
  return tally;
}

#define CORRECT(condition) \
  if (!(condition)) return absl::InternalError("read wrongly: " #condition)

absl::Status ReadSafetensors(const std::string& bytes) {
  fuzz::MemoryEnv env(bytes);
  const auto checkpoint = Checkpoint::Open("damaged.safetensors", &env);
  if (!checkpoint.ok()) return checkpoint.status();
  int64_t total = 0;
  for (const TensorInfo& t : (*checkpoint)->tensors()) {
    total += t.bytes;
    CORRECT(t.offset + t.bytes <= static_cast<int64_t>(bytes.size()));
    std::vector<std::byte> raw(static_cast<size_t>(t.bytes));
    const absl::Status status = (*checkpoint)->ReadBytes(t, 0, absl::MakeSpan(raw));
    if (!status.ok()) return status;
    CORRECT(raw.empty() || std::memcmp(raw.data(), bytes.data() + t.offset, raw.size()) == 0);
    if (t.dtype != DType::kBF16) continue;
    const auto values = (*checkpoint)->ReadF32(t.name, t.shape);
    if (!values.ok()) return values.status();
    for (size_t i = 0; i < values->size(); ++i) {
      uint16_t bits;
      std::memcpy(&bits, raw.data() + 2 * i, 2);
      const float expected = Bf16ToF32(bits);
      CORRECT(std::memcmp(&(*values)[i], &expected, 4) == 0);
    }
  }
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  CORRECT(total == static_cast<int64_t>(bytes.size() - 8 - header));
  return absl::OkStatus();
}

absl::Status ReadConfig(const std::string& text) {
  const auto config = ParseHfConfig(text, "config.json");
  if (!config.ok()) return config.status();
  // By a parser that is told nothing of limits.
  const json object = json::parse(text);
  CORRECT(config->model_type == object["model_type"].get<std::string>());
  CORRECT(config->hidden_size == object["hidden_size"]);
  CORRECT(config->vocab_size == object["vocab_size"]);
  CORRECT(config->num_hidden_layers == object["num_hidden_layers"]);
  CORRECT(config->num_attention_heads == object["num_attention_heads"]);
  CORRECT(config->moe.Validate().ok());
  return absl::OkStatus();
}

TEST_CASE("damaged weights, configurations and their pairs") {
  const std::string config = ReadFile(kModel + "/config.json");
  const std::string weights = ReadFile(kModel + "/model.safetensors");
  const Tally s = DamageMany(weights, 2500, 1, ReadSafetensors);
  CHECK(s.refused > 1200);
  CHECK(s.read > 100);  // damage beyond the header changes values, not the structure

  Tally c;
  for (const char* name : {"qwen2_moe", "qwen3_moe", "mixtral", "olmoe", "phimoe", "deepseek"}) {
    const Tally t =
        DamageMany(ReadFile(kData + "architectures/" + name + "/config.json"), 400, 2, ReadConfig);
    c.refused += t.refused;
    c.read += t.read;
  }
  CHECK(c.refused > 1200);
  CHECK(c.read > 50);

  // Either file of a model: it fits the other one still, or an error says what does not.
  const auto read_model = [](const std::string& config_text, const std::string& file) {
    const auto parsed = ParseHfConfig(config_text, "config.json");
    if (!parsed.ok()) return parsed.status();
    fuzz::MemoryEnv env(file);
    const auto checkpoint = Checkpoint::Open("model.safetensors", &env);
    if (!checkpoint.ok()) return checkpoint.status();
    const auto experts = CheckpointExperts::Create(checkpoint->get(), &*parsed);
    if (!experts.ok()) return experts.status();
    for (int l = 0; l < parsed->moe.num_layers(); ++l) {
      const auto constants = (*experts)->ReadConstants(l);
      if (!constants.ok()) return constants.status();
      CORRECT(constants->gate.size() ==
              static_cast<size_t>(parsed->moe.layers[l].num_experts * parsed->hidden_size));
      for (int e = 0; e < parsed->moe.layers[l].num_experts; ++e) {
        ExpertWeights w;
        const absl::Status status = (*experts)->ReadExpert(l, e, &w);
        if (!status.ok()) return status;
        CORRECT(static_cast<int64_t>(w.down.size()) ==
                parsed->hidden_size * parsed->moe.layers[l].intermediate);
      }
    }
    return absl::OkStatus();
  };
  const Tally m =
      DamageMany(weights, 800, 3, [&](const std::string& b) { return read_model(config, b); });
  CHECK(m.refused > 400);
  const Tally n =
      DamageMany(config, 800, 4, [&](const std::string& b) { return read_model(b, weights); });
  CHECK(n.refused > 400);
}

TEST_CASE("damaged quantized checkpoints, and their configurations") {
  Tally total;
  for (const auto& entry : std::filesystem::directory_iterator(kData + "quantized")) {
    if (!entry.is_directory()) continue;
    INFO(entry.path().string());
    const std::string config = ReadFile(entry.path().string() + "/config.json");
    const std::string weights = ReadFile(entry.path().string() + "/model.safetensors");
    for (const Tally& t :
         {DamageMany(weights, 80, 11,
                     [&](const std::string& b) { return ReadQuantized(config, b); }),
          DamageMany(config, 80, 12,
                     [&](const std::string& b) { return ReadQuantized(b, weights); })}) {
      total.refused += t.refused;
      total.read += t.read;
    }
  }
  CHECK(total.refused > 960);
  CHECK(total.read > 100);
}

TEST_CASE("damaged indices of shards") {
  TempDir dir;
  std::filesystem::copy_file(kModel + "/model.safetensors", dir / "model-00001.safetensors");
  const auto whole = Checkpoint::Open(kModel);
  REQUIRE_OK(whole.status());
  json map;
  for (const TensorInfo& t : (*whole)->tensors())
    map[std::string(t.name)] = "model-00001.safetensors";
  const json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", map}};
  const Tally t = DamageMany(index.dump(), 500, 5, [&](const std::string& bytes) {
    WriteFile(dir / "model.safetensors.index.json", bytes);
    const auto checkpoint = Checkpoint::Open(dir.path());
    if (!checkpoint.ok()) return checkpoint.status();
    const json read = json::parse(bytes);
    CORRECT((*checkpoint)->tensors().size() == read["weight_map"].size());
    for (const TensorInfo& tensor : (*checkpoint)->tensors()) {
      CORRECT((*whole)->Find(tensor.name) != nullptr);
      CORRECT((*whole)->Find(tensor.name)->shape == tensor.shape);
    }
    return absl::OkStatus();
  });
  CHECK(t.refused > 200);
}

TEST_CASE("damaged tokenizers") {
  Tally total;
  for (const char* name : {"llama", "metaspace_split"}) {
    const std::string intact = ReadFile(kData + "tokenizers/" + name + ".json");
    const Tally t = DamageMany(intact, 500, 6, [&](const std::string& bytes) {
      const auto tokenizer = host::Tokenizer::Parse(bytes, "tokenizer.json");
      if (!tokenizer.ok()) return tokenizer.status();
      const auto ids = tokenizer->Encode("The history of caf\xC3\xA9 \xF0\x9F\x98\x80 1234\n");
      if (!ids.ok()) return ids.status();
      for (const int32_t id : *ids) CORRECT(id >= 0 && id < tokenizer->size());
      return tokenizer->DecodeBytes(*ids).status();
    });
    total.refused += t.refused;
    total.read += t.read;
  }
  CHECK(total.refused > 300);
  CHECK(total.read > 10);
}

TEST_CASE("damaged packs give the original bytes or an error") {
  TempDir cache, dir;
  OpenModelOptions open;
  open.cache_dir = cache.path();
  open.mode = OpenMode::kPack;
  REQUIRE_OK(OpenModel(kModel, open).status());
  std::string pack;
  for (const auto& entry : std::filesystem::directory_iterator(cache.path())) {
    if (entry.is_directory()) pack = entry.path().string();
  }
  // Everything that a pack holds, in order.
  const auto contents = [](const std::string& path) -> absl::StatusOr<std::string> {
    const auto source = OpenExpertPack(path);
    if (!source.ok()) return source.status();
    std::string all;
    for (int l = 0; l < (*source)->model().num_layers(); ++l) {
      const auto constants = (*source)->ReadConstants(l);
      if (!constants.ok()) return constants.status();
      all.append(reinterpret_cast<const char*>(constants->gate.data()), constants->gate.size() * 4);
      all.append(reinterpret_cast<const char*>(constants->shared_expert.data()),
                 constants->shared_expert.size());
      for (int e = 0; e < (*source)->model().layers[l].num_experts; ++e) {
        const RecordLayout& layout = (*source)->layout(l, e, 0);
        test::RecordBuffer record(layout.bytes);
        const absl::Status status = (*source)->ReadRecord(l, e, 0, record.span());
        if (!status.ok()) return status;
        all.append(reinterpret_cast<const char*>(record.span().data()),
                   static_cast<size_t>(layout.bytes));
      }
    }
    return all;
  };
  const auto original = contents(pack);
  REQUIRE_OK(original.status());
  std::filesystem::copy(pack, dir / "pack");
  int refused = 0;
  for (const char* name : {"moert.json", "constants.safetensors", "experts-00000.safetensors"}) {
    const std::string intact = ReadFile(pack + "/" + name);
    const Tally t = DamageMany(intact, 400, 7, [&](const std::string& bytes) {
      WriteFile(dir / (std::string("pack/") + name), bytes);
      const auto got = contents(dir / "pack");
      if (!got.ok()) return got.status();
      CORRECT(*got == *original);
      return absl::OkStatus();
    });
    WriteFile(dir / (std::string("pack/") + name), intact);
    refused += t.refused;
  }
  CHECK(refused > 1000);
}

TEST_CASE("damaged traces and profiles and plans") {
  const std::string trace = ReadFile(SourceDir() + "/tests/fuzz/corpus/trace/two_windows.trace");
  const auto scratch = [](const std::string& bytes) {
    return fuzz::ScratchFile(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  };
  const Tally t = DamageMany(trace, 800, 8, [&](const std::string& bytes) {
    const auto reader = OpenTrace(scratch(bytes));
    if (!reader.ok()) return reader.status();
    for (;;) {
      const auto call = (*reader)->Next();
      if (!call.ok()) return call.status();
      if (*call == nullptr) return absl::OkStatus();
      for (const int32_t id : (*call)->ids) {
        CORRECT(id >= 0 && id < (*reader)->header().model.layers[(*call)->layer].num_experts);
      }
    }
  });
  CHECK(t.refused > 400);

  const std::string profile = ReadFile(SourceDir() + "/tests/fuzz/corpus/profile/all_fields.json");
  const Tally p = DamageMany(profile, 400, 9, [&](const std::string& bytes) {
    const auto read = LoadProfile(scratch(bytes));
    if (!read.ok()) return read.status();
    CORRECT(read->link_bytes_per_s >= 1 && read->link_latency_ns >= 0);
    return absl::OkStatus();
  });
  CHECK(p.refused > 150);

  const std::string plan = ReadFile(SourceDir() + "/tests/fuzz/corpus/plan/two_formats.json");
  const Tally l = DamageMany(plan, 400, 10, [&](const std::string& bytes) {
    fuzz::MemoryEnv env(bytes);
    const auto read = ReadPlan("plan", &env);
    if (!read.ok()) return read.status();
    CORRECT(read->model.Validate().ok());
    CORRECT(read->version.format(0, 0) == read->version.formats[0]);
    return absl::OkStatus();
  });
  CHECK(l.refused > 150);
}

}  // namespace
}  // namespace moert
