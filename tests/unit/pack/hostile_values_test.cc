// Well-formed files whose values are hostile: every value of a file of each kind is replaced by
// numbers at and beyond the edges, by other types, by long and deep ones, or is left out; checksums
// are made right again, so that nothing else refuses the file. Each is refused with an error that
// is the input's fault, or read; never more memory than twice the intact file's and the file's own.
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "fuzz/fuzz.h"
#include "host/chat_template.h"
#include "host/tokenizer.h"
#include "moert/offline/calibration.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/offline/plan.h"
#include "moert/offline/token_file.h"
#include "moert/source/expert_source.h"
#include "moert/tools/profile.h"
#include "moert/tools/trace.h"
#include "pack/calibration_lines.h"
#include "pack/sealed_json.h"
#include "support/catch.h"
#include "support/heap_peak.h"
#include "support/paths.h"
#include "support/record_buffer.h"
#include "support/small_inputs.h"
#include "support/temp_dir.h"
#include "trace/trace_format.h"

namespace moert {
namespace {

using nlohmann::json;
using test::ReadFile;
using test::ReadQuantized;
using test::TempDir;
using test::WriteFile;

const std::string kData = SourceDir() + "/tests/data/";
const std::string kCorpus = SourceDir() + "/tests/fuzz/corpus/";

using Reader = std::function<absl::Status(const std::string& bytes)>;
using Pointer = json::json_pointer;

std::vector<json> HostileValues() {
  json deep = json::array();
  for (int i = 0; i < 100; ++i) deep = json::array({deep});
  return {-1,
          0,
          1,
          65537,
          2147483648,
          9007199254740993,
          INT64_MAX,
          INT64_MIN,
          UINT64_MAX,
          1e308,
          -0.5,
          "",
          "../../../etc/passwd",
          "\x1b[2J\x01",
          std::string(70'000, 'x'),
          true,
          nullptr,
          json::array(),
          json::object(),
          json::array({json::array({0})}),
          json(std::vector<int>(3000, 0)),
          deep};
}

/// Where values are: all members, and the first and last element of lists.
void Places(const json& value, const Pointer& at, std::vector<Pointer>* places) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      places->push_back(at / key);
      Places(member, at / key, places);
    }
  } else if (value.is_array() && !value.empty()) {
    for (const size_t i : {size_t{0}, value.size() - 1}) {
      places->push_back(at / i);
      Places(value[i], at / i, places);
      if (value.size() == 1) break;
    }
  }
}

/// `most` of all replacements and removals, spread evenly.
std::vector<json> Variants(const json& intact, size_t most) {
  std::vector<Pointer> places;
  Places(intact, Pointer(), &places);
  const std::vector<json> values = HostileValues();
  const size_t all = places.size() * (values.size() + 1);
  const size_t count = std::min(most, all);
  std::vector<json> variants;
  for (size_t i = 0; i < count; ++i) {
    const size_t n = i * all / count;
    const Pointer& place = places[n / (values.size() + 1)];
    const size_t which = n % (values.size() + 1);
    json variant = intact;
    if (which < values.size()) {
      variant[place] = values[which];
    } else if (variant[place.parent_pointer()].is_object()) {
      variant[place.parent_pointer()].erase(place.back());
    } else {
      variant[place.parent_pointer()].erase(variant[place.parent_pointer()].size() - 1);
    }
    variants.push_back(std::move(variant));
  }
  return variants;
}

/// Heap over the file's bytes: the library's bound, and that of the examples' trees.
constexpr int64_t kText = 3, kTree = 24;

int files = 0, refusals = 0;  // of all cases

/// How many were refused. `make`: the file of a text.
int Attack(const std::string& name, const json& intact, size_t most,
           const std::function<std::string(const json&)>& make, const Reader& read,
           int64_t of_size = kText) {
  const std::string whole = make(intact);
  INFO(name);
  REQUIRE_OK(read(whole));  // also what is made once
  const test::HeapPeak usual;
  REQUIRE_OK(read(whole));
  const int64_t intact_bytes = usual.bytes();
  int refused = 0;
  for (const json& variant : Variants(intact, most)) {
    const std::string bytes = make(variant);
    INFO(name << ": " << json::diff(intact, variant).dump().substr(0, 200));
    const test::HeapPeak heap;
    const absl::Status status = read(bytes);
    const auto size = static_cast<int64_t>(bytes.size());
    CHECK(heap.bytes() <= 2 * intact_bytes + of_size * size + 65536);
    ++files;
    if (status.ok()) continue;
    INFO(std::string(status.message()));
    CHECK(status.code() != absl::StatusCode::kInternal);
    CHECK(status.code() != absl::StatusCode::kUnknown);
    CHECK(status.code() != absl::StatusCode::kResourceExhausted);
    CHECK(!status.message().empty());
    CHECK(status.message().size() < 4096);
    CHECK(status.message().find('\x1b') == absl::string_view::npos);
    ++refused;
  }
  refusals += refused;
  return refused;
}

std::string Dump(const json& value) { return value.dump(); }
std::string Sealed(const json& value) {
  json open = value;
  if (!open.is_object()) return open.dump();
  open.erase("checksum");
  return SealedText(open.dump());
}

/// The files of a pack but for its manifest are those of the repository.
absl::Status ReadPack(const std::string& dir) {
  const auto pack = OpenExpertPack(dir);
  if (!pack.ok()) return pack.status();
  for (int l = 0; l < (*pack)->model().num_layers(); ++l) {
    const auto constants = (*pack)->ReadConstants(l);
    if (!constants.ok()) return constants.status();
    for (int e = 0; e < (*pack)->model().layers[static_cast<size_t>(l)].num_experts; ++e) {
      test::RecordBuffer record((*pack)->layout(l, e, 0).bytes);
      const absl::Status status = (*pack)->ReadRecord(l, e, 0, record.span());
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

TEST_CASE("packs") {
  const TempDir dir;
  const std::string pack = dir / "pack";
  std::filesystem::copy(kData + "packs/v1", pack);
  const json manifest = json::parse(ReadFile(kData + "packs/v1/moert.json"));
  const int refused = Attack("manifest", manifest, 400, Sealed, [&](const std::string& bytes) {
    WriteFile(pack + "/moert.json", bytes);
    return ReadPack(pack);
  });
  CHECK(refused > 250);
}

TEST_CASE("plans and calibrations") {
  const json plan = json::parse(ReadFile(kCorpus + "plan/two_formats.json"));
  CHECK(Attack("plan", plan, 300, Sealed, [](const std::string& bytes) {
          fuzz::MemoryEnv env(bytes);
          return ReadPlan("plan", &env).status();
        }) > 200);

  CHECK(Attack("calibration", json::parse(CalibrationToJson(test::SmallCalibration())), 300, Sealed,
               [](const std::string& bytes) {
                 fuzz::MemoryEnv env(bytes);
                 return ReadCalibration("calibration", &env).status();
               }) > 150);
  const LayerCalibration layer = test::SmallCalibration().layers[0];
  const auto experts = static_cast<int>(layer.selections.size());
  const size_t schemes = test::SmallCalibration().schemes.size();
  CHECK(Attack("line of a calibration", json::parse(LayerCalibrationToLine(layer)), 200, Sealed,
               [&](const std::string& line) {
                 return LayerCalibrationFromLine(line, experts, schemes, "calibration").status();
               }) > 100);
}

TEST_CASE("profiles and traces") {
  const auto scratch = [](const std::string& bytes) {
    return fuzz::ScratchFile(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  };
  const json profile = json::parse(ReadFile(kCorpus + "profile/all_fields.json"));
  CHECK(Attack("profile", profile, 300, Dump, [&](const std::string& bytes) {
          return LoadProfile(scratch(bytes)).status();
        }) > 100);

  const std::string trace = ReadFile(kCorpus + "trace/two_windows.trace");
  uint32_t numbers[2];  // version, bytes of JSON
  std::memcpy(numbers, trace.data() + 8, sizeof(numbers));
  REQUIRE(numbers[0] == 1);  // no checksums
  const std::string calls = trace.substr(trace::kFileHeaderBytes + numbers[1]);
  const json header = json::parse(trace.substr(trace::kFileHeaderBytes, numbers[1]));
  const auto make = [&](const json& value) {
    const std::string text = value.dump();
    const auto length = static_cast<uint32_t>(text.size());
    return trace.substr(0, 12) + std::string(reinterpret_cast<const char*>(&length), 4) + text +
           calls;
  };
  CHECK(Attack("trace", header, 300, make, [&](const std::string& bytes) -> absl::Status {
          const auto reader = OpenTrace(scratch(bytes));
          if (!reader.ok()) return reader.status();
          for (;;) {
            const auto call = (*reader)->Next();
            if (!call.ok()) return call.status();
            if (*call == nullptr) return absl::OkStatus();
          }
        }) > 150);
}

TEST_CASE("configurations") {
  int refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kData + "architectures")) {
    if (!entry.is_directory()) continue;
    const json config = json::parse(ReadFile(entry.path().string() + "/config.json"));
    refused += Attack(entry.path().filename(), config, 150, Dump, [](const std::string& text) {
      return ParseHfConfig(text, "config.json").status();
    });
  }
  CHECK(refused > 500);
}

std::string Safetensors(const json& header, const std::string& data) {
  const std::string text = header.dump();
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text + data;
}

TEST_CASE("quantized checkpoints: headers and configurations") {
  int refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kData + "quantized")) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename();
    const std::string config = ReadFile(entry.path().string() + "/config.json");
    const std::string file = ReadFile(entry.path().string() + "/model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof(length));
    const json header = json::parse(file.substr(sizeof(length), length));
    const std::string data = file.substr(sizeof(length) + length);
    refused += Attack(
        name + " header", header, 60, [&](const json& value) { return Safetensors(value, data); },
        [&](const std::string& bytes) { return ReadQuantized(config, bytes); });
    refused += Attack(name + " config", json::parse(config), 60, Dump,
                      [&](const std::string& bytes) { return ReadQuantized(bytes, file); });
  }
  CHECK(refused > 700);
}

TEST_CASE("indices of shards") {
  const TempDir dir;
  const std::string shard = ReadFile(kCorpus + "safetensors/all_types");
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

TEST_CASE("tokenizers") {
  int refused = 0;
  for (const char* name : {"tokenizer/byte_level", "tokenizer/metaspace", "tokenizer/fallback"}) {
    const json tokenizer = json::parse(ReadFile(kCorpus + name + ".json"));
    refused += Attack(name, tokenizer, 150, Dump, [](const std::string& bytes) -> absl::Status {
      const auto read = host::Tokenizer::Parse(bytes, "tokenizer.json");
      if (!read.ok()) return read.status();
      const auto ids = read->Encode("a b");
      return ids.ok() ? read->DecodeBytes(*ids).status() : ids.status();
    });
  }
  CHECK(refused > 150);
}

TEST_CASE("chat templates and token files") {
  const TempDir dir;
  const json config = {{"chat_template", "{{ bos_token }}<|im_start|>user<|im_end|>"},
                       {"bos_token", "<s>"},
                       {"eos_token", {{"content", "</s>"}}}};
  CHECK(Attack(
            "chat template", config, 100, Dump,
            [&](const std::string& bytes) -> absl::Status {
              WriteFile(dir / "tokenizer_config.json", bytes);
              const auto read = host::ChatTemplate::LoadModel(dir.path());
              if (!read.ok()) return read.status();
              return read->Render({{host::ChatMessage::Role::kUser, "Hello"}}).status();
            },
            kTree) > 20);
  // Every length around the edges, and ids beyond the vocabulary.
  for (const char* name : {"t.u16", "t.u32"}) {
    for (size_t size = 0; size < 20; ++size) {
      for (const char fill : {'\0', '\x7f', '\xff'}) {
        const std::string bytes(size, fill);
        WriteFile(dir / name, bytes);
        INFO(name << " of " << size);
        const auto ids = ReadTokenFile(dir / name, 100, 0);
        const size_t width = name[3] == '3' ? 4 : 2;
        CHECK(ids.ok() == (size > 0 && size % width == 0 && fill == '\0'));
        ++files;
        refusals += !ids.ok();
      }
    }
  }
}

TEST_CASE("their number") {
  // As docs/internals/testing.md says; of a run of all cases.
  if (files > 1000) {
    CHECK(files > 6900);
    CHECK(refusals > 5600);
  }
}

}  // namespace
}  // namespace moert
