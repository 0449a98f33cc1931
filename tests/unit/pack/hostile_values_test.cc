// Well-formed files whose values are hostile: every value of a file of each kind is replaced by
// numbers at and beyond the edges, by other types, by long and deep ones, or is left out; checksums
// are made right again, so that nothing else refuses the file. Each is refused with an error that
// is the input's fault, or read; never more memory than twice the intact file's and the file's own.
// Checkpoints: unit/checkpoint/hostile_checkpoints_test.cc.
#include "support/hostile_values.h"

#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "fuzz/fuzz.h"
#include "host/chat_template.h"
#include "host/tokenizer.h"
#include "moert/offline/calibration.h"
#include "moert/offline/plan.h"
#include "moert/offline/token_file.h"
#include "moert/source/expert_source.h"
#include "moert/tools/profile.h"
#include "moert/tools/trace.h"
#include "pack/calibration_lines.h"
#include "pack/sealed_json.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/record_buffer.h"
#include "support/small_inputs.h"
#include "support/temp_dir.h"
#include "trace/trace_format.h"

namespace moert {
namespace {

using nlohmann::json;
using test::Attack;
using test::Dump;
using test::ReadFile;
using test::TempDir;
using test::WriteFile;

const std::string kData = SourceDir() + "/tests/data/";
const std::string kCorpus = SourceDir() + "/tests/fuzz/corpus/";

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
            test::kTree) > 20);
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
        ++test::files;
        test::refusals += !ids.ok();
      }
    }
  }
}

TEST_CASE("their number") { test::CheckNumbers(2300, 1900); }

}  // namespace
}  // namespace moert
