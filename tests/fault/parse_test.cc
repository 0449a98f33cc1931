// Readers of untrusted files when memory runs out, and how much of it they take.
#include <filesystem>
#include <functional>

#include "fmt/format.h"
#include "base/json_writer.h"
#include "checkpoint/safetensors_header.h"
#include "fault/inject.h"
#include "fuzz/fuzz.h"
#include "moert/profile.h"
#include "moert/trace.h"
#include "moert/offline/calibration.h"
#include "moert/offline/hf_config.h"
#include "pack/pack_manifest.h"
#include "moert/offline/plan.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using fuzz::MemoryEnv;
using fuzz::MemoryFile;
using test::TempDir;

/// A reader of one kind of file: from its bytes to a status.
struct Kind {
  const char* name;
  std::function<absl::Status(const std::string& bytes)> read;
};

std::string Scratch(const std::string& bytes) {
  return fuzz::ScratchFile(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

template <typename Read>
std::function<absl::Status(const std::string&)> FromEnv(Read read) {
  return [read](const std::string& bytes) {
    MemoryEnv env(bytes);
    return read(&env).status();
  };
}

std::vector<Kind> Kinds() {
  return {
      {"safetensors",
       [](const std::string& bytes) {
         return ReadSafetensorsHeader(MemoryFile("f", bytes)).status();
       }},
      {"manifest", FromEnv([](Env* env) { return ReadManifest("f", env); })},
      {"plan", FromEnv([](Env* env) { return ReadPlan("f", env); })},
      {"calibration", FromEnv([](Env* env) { return ReadCalibration("f", env); })},
      {"hf_config", [](const std::string& bytes) { return ParseHfConfig(bytes, "f").status(); }},
      {"profile", [](const std::string& bytes) { return LoadProfile(Scratch(bytes)).status(); }},
      {"trace", [](const std::string& bytes) { return OpenTrace(Scratch(bytes)).status(); }},
  };
}

/// Files that are read, and one that has to be refused late.
std::vector<std::string> Samples(const std::string& kind) {
  std::vector<std::string> samples;
  const std::string corpus = SourceDir() + "/tests/fuzz/corpus/" + kind;
  if (std::filesystem::exists(corpus)) {
    for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
      const std::string name = entry.path().filename();
      if (name.rfind("found", 0) != 0) samples.push_back(test::ReadFile(entry.path()));
    }
  }
  if (kind == "calibration") {
    Calibration c;
    MoeLayerSpec layer;
    layer.num_experts = 2;
    layer.hidden = layer.intermediate = 64;
    layer.routing.top_k = 1;
    c.model.architecture = "test";
    c.model.layers = {layer};
    c.tokens = c.window = 8;
    c.schemes = {*Scheme::Parse("w4a16_g128")};
    c.layers = {{{1, 2}, {0.5, 0.5}, 1, 1, std::vector<double>(6, 0.25), {}}};
    samples.push_back(CalibrationToJson(c));
  }
  REQUIRE(!samples.empty());
  std::string cut = samples[0];
  cut.resize(cut.size() * 9 / 10);
  samples.push_back(cut);
  return samples;
}

TEST_CASE("every reader gives an error when an allocation fails, and keeps nothing") {
  for (const Kind& kind : Kinds()) {
    for (const std::string& sample : Samples(kind.name)) {
      const absl::StatusCode normal = kind.read(sample).code();
      for (const bool lasting : {false, true}) {
        for (int64_t n = 1;; n += 1 + n / 40) {
          INFO(kind.name << " allocation " << n << (lasting ? " and later" : ""));
          const int64_t blocks = fault_live_blocks();
          absl::StatusCode code;
          fault_arm(FAULT_MALLOC, n, lasting);
          try {  // internal readers may throw bad_alloc to the public function that calls them
            code = kind.read(sample).code();
          } catch (const std::bad_alloc&) {
            code = absl::StatusCode::kResourceExhausted;
          }
          const bool failed = fault_disarm() > 0;
          if (code != normal) CHECK(code == absl::StatusCode::kResourceExhausted);
          CHECK(fault_live_blocks() == blocks);
          if (!failed) break;
        }
      }
    }
  }
}

/// The most heap that a reader held beyond what the file's own bytes are held in.
double Amplification(const Kind& kind, const std::string& bytes) {
  fault_arm(FAULT_MALLOC, 0, 0);
  const int64_t before = fault_live_bytes();
  (void)kind.read(bytes);
  return static_cast<double>(fault_peak_bytes() - before) / static_cast<double>(bytes.size());
}

std::string Repeat(const std::string& first, const std::string& more, size_t bytes,
                   const std::string& end) {
  std::string text = first;
  while (text.size() < bytes) text += more;
  return text + end;
}

std::string Numbered(const std::string& first, const std::function<std::string(int)>& item,
                     size_t bytes, const std::string& end) {
  std::string text = first;
  for (int i = 0; text.size() < bytes; ++i) text += (i > 0 ? "," : "") + item(i);
  return text + end;
}

std::string Safetensors(const std::string& header) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header;
}

// Of text alone: what takes most memory for its length in a parser that makes a tree.
std::vector<std::string> HostileObjects(size_t bytes) {
  return {
      Repeat("{\"x\":[0", ",0", bytes, "]}"),
      Repeat("{\"x\":[[]", ",[]", bytes, "]}"),
      Repeat("{\"x\":[{}", ",{}", bytes, "]}"),
      Repeat("{\"x\":[\"\"", ",\"\"", bytes, "]}"),
      Numbered("{", [](int i) { return fmt::format("\"{:x}\":0", i); }, bytes, "}"),
      Numbered("{\"x\":{", [](int i) { return fmt::format("\"{:x}\":[]", i); }, bytes, "}}"),
  };
}

TEST_CASE("memory is bounded by the file's size") {
  constexpr size_t kBytes = 6'000'000;
  for (const Kind& kind : Kinds()) {
    // The text itself, once more where the reader is given bytes that it does not own, and the keys
    // of open objects.
    const double limit = 3.1;
    for (const std::string& text : HostileObjects(kBytes)) {
      std::string bytes = text;
      if (kind.name == std::string("safetensors")) bytes = Safetensors(text);
      if (kind.name == std::string("trace")) continue;
      INFO(kind.name << ": " << text.substr(0, 40));
      CHECK(Amplification(kind, bytes) < limit);
    }
  }
}

TEST_CASE("what is kept of a file is bounded by its size") {
  constexpr size_t kBytes = 6'000'000;
  const std::vector<Kind> kinds = Kinds();
  const auto tensor = [](int i) {
    return fmt::format("\"{:x}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", i);
  };
  const std::string tensors = Safetensors(Numbered("{", tensor, kBytes, "}"));
  REQUIRE_OK(kinds[0].read(tensors));
  CHECK(Amplification(kinds[0], tensors) < 4.1);  // once its bytes in the test's own file
  const std::string metadata = Safetensors(
      Numbered("{\"__metadata__\":{", [](int i) { return fmt::format("\"{:x}\":\"\"", i); },
               kBytes, "}}"));
  REQUIRE_OK(kinds[0].read(metadata));
  CHECK(Amplification(kinds[0], metadata) < 3.1);
}

}  // namespace
}  // namespace moert
