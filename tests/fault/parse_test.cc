// Readers of untrusted files when memory runs out, and how much of it they take.
#include <filesystem>
#include <functional>

#include "base/json_writer.h"
#include "checkpoint/safetensors_header.h"
#include "fault/inject.h"
#include "fmt/format.h"
#include "fuzz/fuzz.h"
#include "moert/offline/calibration.h"
#include "moert/offline/hf_config.h"
#include "moert/offline/plan.h"
#include "moert/tools/profile.h"
#include "moert/tools/trace.h"
#include "pack/pack_manifest.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/small_inputs.h"
#include "support/temp_dir.h"
#include "trace/trace_format.h"

namespace moert {
namespace {

using fuzz::MemoryEnv;
using fuzz::MemoryFile;

/// A reader of one kind of file. `make` takes the file's bytes and returns what reads them, so that
/// a test's own copy is not counted as the reader's memory.
struct Kind {
  const char* name;
  std::function<std::function<absl::Status()>(const std::string& bytes)> make;
  double refused;  // heap over the file's bytes, of a text that is refused: of all JSON
  double kept;     // of the worst file that is read
  absl::Status read(const std::string& bytes) const { return make(bytes)(); }
};

std::string Scratch(const std::string& bytes) {
  return fuzz::ScratchFile(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

template <typename Read>
auto FromEnv(Read read) {
  return [read](const std::string& bytes) {
    return [read, env = std::make_shared<MemoryEnv>(bytes)] { return read(env.get()).status(); };
  };
}

template <typename Read>
auto FromPath(Read read) {
  return [read](const std::string& bytes) {
    return [read, path = Scratch(bytes)] { return read(path).status(); };
  };
}

// The bounds of docs/reference/security.md. Beside the text itself: 4 bytes a key of the objects
// that are open; then what is kept. A number of a list takes 2 bytes of text and 8 of memory, an
// index 4.
constexpr double kText = 2;

std::vector<Kind> Kinds() {
  return {
      {"safetensors",
       [](const std::string& bytes) {
         return [file = std::make_shared<MemoryFile>("f", bytes)] {
           return ReadSafetensorsHeader(*file).status();
         };
       },
       kText, 3},
      {"manifest", FromEnv([](Env* env) { return ReadManifest("f", env); }), kText, 3},
      {"plan", FromEnv([](Env* env) { return ReadPlan("f", env); }), kText, 3.5},
      {"calibration", FromEnv([](Env* env) { return ReadCalibration("f", env); }), kText, 5.5},
      {"hf_config",
       [](const std::string& bytes) {
         return [text = std::make_shared<const std::string>(bytes)] {
           return ParseHfConfig(*text, "f").status();
         };
       },
       kText, kText},
      {"profile", FromPath([](const std::string& path) { return LoadProfile(path); }), kText,
       kText},
      {"trace", FromPath([](const std::string& path) { return OpenTrace(path); }), kText, kText},
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
    samples.push_back(CalibrationToJson(test::SmallCalibration()));
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
      const auto read = kind.make(sample);
      const absl::StatusCode normal = read().code();
      for (const bool lasting : {false, true}) {
        for (int64_t n = 1;; n += 1 + n / 40) {
          INFO(kind.name << " allocation " << n << (lasting ? " and later" : ""));
          const int64_t blocks = fault_live_blocks();
          absl::StatusCode code;
          fault_arm(FAULT_MALLOC, n, lasting);
          try {  // internal readers may throw bad_alloc to the public function that calls them
            code = read().code();
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

/// The most heap that a reader held, over the file's bytes.
double Amplification(const Kind& kind, const std::string& bytes) {
  const auto read = kind.make(bytes);
  fault_arm(FAULT_MALLOC, 0, 0);
  const int64_t before = fault_live_bytes();
  (void)read();
  return static_cast<double>(fault_peak_bytes() - before) / static_cast<double>(bytes.size());
}

/// Files of a size, which nobody may read.
class UnreadEnv final : public Env {
 public:
  explicit UnreadEnv(int64_t size) : size_(size) {}
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(const std::string& path,
                                                         FileAccess) override {
    return std::make_unique<Unread>(path, size_);
  }

 private:
  class Unread final : public RandomAccessFile {
   public:
    Unread(std::string path, int64_t size) : path_(std::move(path)), size_(size) {}
    absl::Status Read(int64_t, absl::Span<std::byte>) const override {
      return absl::InternalError("it was read");
    }
    int64_t size() const override { return size_; }
    const std::string& path() const override { return path_; }

   private:
    const std::string path_;
    const int64_t size_;
  };
  const int64_t size_;
};

TEST_CASE("a file over its bound is refused unread, with its size and the legal one") {
  const auto check = [](int64_t bound, auto read) {
    UnreadEnv env(bound + 1);
    const absl::Status status = read(&env).status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(status.message()),
               Catch::Contains(fmt::format("has {} bytes, legal is at most {}", bound + 1, bound)));
    UnreadEnv legal(bound);
    CHECK(read(&legal).status().code() != absl::StatusCode::kInvalidArgument);
  };
  check(256'000'000, [](Env* env) { return ReadManifest("f", env); });
  check(100'000'000, [](Env* env) { return ReadPlan("f", env); });
  check(512'000'000, [](Env* env) { return ReadCalibration("f", env); });
  check(8'000'000, [](Env* env) { return LoadHfConfig("f", env); });
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

std::string Trace(const std::string& header) {
  std::string bytes(trace::kMagic, sizeof(trace::kMagic));
  const uint32_t numbers[] = {trace::kVersion, static_cast<uint32_t>(header.size())};
  bytes.append(reinterpret_cast<const char*>(numbers), sizeof(numbers));
  return bytes + header + std::string(trace::kChecksumBytes, '\0');
}

// A text whose memory in a parser that makes a tree is largest for its length.
std::vector<std::string> HostileObjects(size_t bytes) {
  return {
      Repeat("{\"x\":[0", ",0", bytes, "]}"),
      Repeat("{\"x\":[[]", ",[]", bytes, "]}"),
      Repeat("{\"x\":[{}", ",{}", bytes, "]}"),
      Repeat("{\"x\":[\"\"", ",\"\"", bytes, "]}"),
      Numbered(
          "{", [](int i) { return fmt::format("\"{:x}\":0", i); }, bytes, "}"),
      Numbered(
          "{\"x\":{", [](int i) { return fmt::format("\"{:x}\":[]", i); }, bytes, "}}"),
  };
}

TEST_CASE("a text that is refused takes at most twice its size") {
  constexpr size_t kBytes = 1'000'000;
  for (const Kind& kind : Kinds()) {
    for (const std::string& text : HostileObjects(kBytes)) {
      std::string bytes = text;
      if (kind.name == std::string("safetensors")) bytes = Safetensors(text);
      if (kind.name == std::string("trace")) bytes = Trace(text);
      INFO(kind.name << ": " << text.substr(0, 40));
      CHECK(Amplification(kind, bytes) < kind.refused);
    }
  }
}

void CheckKept(const std::string& name, const std::string& bytes) {
  for (const Kind& kind : Kinds()) {
    if (kind.name != name) continue;
    INFO(name << ", " << bytes.size() << " bytes");
    REQUIRE_OK(kind.read(bytes));
    const double seen = Amplification(kind, bytes);
    CHECK(seen < kind.kept);
    CHECK(seen > 1);  // it was read
  }
}

TEST_CASE("what is kept of a safetensors header") {
  constexpr size_t kBytes = 1'000'000;
  const auto tensor = [](int i) {
    return fmt::format(
        "\"{:x}\":{{\"dtype\":\"U8\",\"shape\":[0,0,0,0,0,0,0,0],\"data_offsets\":[0,0]}}", i);
  };
  CheckKept("safetensors", Safetensors(Numbered("{", tensor, kBytes, "}")));
  CheckKept("safetensors",
            Safetensors(Numbered(
                "{\"__metadata__\":{", [](int i) { return fmt::format("\"{:x}\":\"\"", i); },
                kBytes, "}}")));
}

MoeModelSpec ManyExperts() {
  MoeLayerSpec layer;
  layer.num_experts = 65'536;
  layer.hidden = layer.intermediate = 64;
  layer.routing.top_k = 1;
  MoeModelSpec model;
  model.architecture = "test";
  for (; layer.model_layer < 4; ++layer.model_layer) model.layers.push_back(layer);
  return model;
}

TEST_CASE("what is kept of a calibration and a plan") {
  const MoeModelSpec model = ManyExperts();
  Calibration c;
  c.model = model;
  c.tokens = c.window = 8;
  c.schemes = {*Scheme::Parse("w4a16_g128")};
  const size_t experts = 65'536;
  for (size_t l = 0; l < model.layers.size(); ++l) {
    c.layers.push_back({std::vector<int64_t>(experts),
                        std::vector<double>(experts),
                        0,
                        0,
                        std::vector<double>(3 * experts),
                        {}});
  }
  CheckKept("calibration", CalibrationToJson(c));
  Plan plan;
  plan.model = model;
  plan.version.name = "p";
  const Scheme bf16 = *Scheme::Parse("bf16");
  plan.version.formats = {{bf16, bf16, bf16, false}};
  plan.version.assignment.assign(model.layers.size(), std::vector<int>(experts));
  CheckKept("plan", PlanToJson(plan));
}

}  // namespace
}  // namespace moert
