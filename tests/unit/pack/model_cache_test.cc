#include "pack/model_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/bf16.h"
#include "moert/offline/checkpoint.h"
#include "moert/source/expert_source.h"
#include "quant/packing.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/record_buffer.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

namespace fs = std::filesystem;
using test::RecordBuffer;
using test::TempDir;

const std::string kTiny = SourceDir() + "/examples/models/tiny-moe";

struct Calls {
  int logs = 0;  // of a pack that is written
  std::atomic<int> waits{0};
  int64_t done = 0, total = 0;
  std::string line;
};

OpenModelOptions Options(const std::string& cache_dir, Calls* calls) {
  OpenModelOptions o;
  o.mode = OpenMode::kPack;
  o.cache_dir = cache_dir;
  o.user = calls;
  o.log = [](void* user, absl::string_view line) {
    auto* c = static_cast<Calls*>(user);
    c->line = std::string(line.data(), line.size());
    if (c->line.rfind("waiting", 0) == 0) {
      ++c->waits;
    } else {
      ++c->logs;
    }
  };
  o.progress = [](void* user, int64_t done, int64_t total) {
    auto* c = static_cast<Calls*>(user);
    c->done = done;
    c->total = total;
  };
  return o;
}

// A private copy of the bundled model, with its weights.
void CopyModel(const std::string& to) {
  fs::create_directories(to);
  for (const char* name : {"config.json", "model.safetensors"}) {
    test::WriteFile(to + "/" + name, test::ReadFile(kTiny + "/" + name));
  }
}

std::vector<std::string> Packs(const std::string& cache) {
  std::vector<std::string> names;
  for (const auto& e : fs::directory_iterator(cache)) {
    if (e.is_directory()) names.push_back(e.path().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST_CASE("the cached pack holds the checkpoint's weights, bit for bit") {
  TempDir dir;
  Calls calls;
  const auto source = OpenModel(kTiny, Options(dir / "cache", &calls));
  REQUIRE_OK(source.status());
  CHECK(calls.logs == 1);
  CHECK(calls.done == 256);
  CHECK(calls.total == 256);
  CHECK_THAT(calls.line, Catch::Contains(dir / "cache") && Catch::Contains("12.0 MiB"));
  const ExpertSource& s = **source;
  REQUIRE(s.num_versions() == 1);
  CHECK(s.version_name(0) == "bf16");
  CHECK(s.model().num_layers() == 8);
  CHECK(s.layout(0, 0, 0).bytes == 49152);

  const auto c = Checkpoint::Open(kTiny);
  REQUIRE_OK(c.status());
  const auto check = [&](const MatrixLayout& m, const std::byte* record, const std::string& name) {
    std::vector<float> got;
    REQUIRE_OK(UnpackMatrix(m, record, &got));
    const auto want = (*c)->ReadF32(name, {m.rows, m.k});
    REQUIRE_OK(want.status());
    CHECK(got == *want);
  };
  const RecordBuffer buffer(49152);
  for (int l = 0; l < 8; ++l) {
    const std::string mlp = "model.layers." + std::to_string(l) + ".mlp.";
    for (int e = 0; e < 32; ++e) {
      REQUIRE_OK(s.ReadRecord(l, e, 0, buffer.span()));
      const RecordLayout& layout = s.layout(l, e, 0);
      const std::string expert = mlp + "experts." + std::to_string(e);
      check(layout.gate, buffer.data(), expert + ".gate_proj.weight");
      check(layout.up, buffer.data(), expert + ".up_proj.weight");
      check(layout.down, buffer.data(), expert + ".down_proj.weight");
    }
    const auto k = s.ReadConstants(l);
    REQUIRE_OK(k.status());
    CHECK(k->gate == *(*c)->ReadF32(mlp + "gate.weight", {32, 128}));
    CHECK(k->shared_gate == *(*c)->ReadF32(mlp + "shared_expert_gate.weight", {1, 128}));
    CHECK(k->selection_bias.empty());
    check(k->shared_layout.gate, k->shared_expert.data(), mlp + "shared_expert.gate_proj.weight");
    check(k->shared_layout.up, k->shared_expert.data(), mlp + "shared_expert.up_proj.weight");
    check(k->shared_layout.down, k->shared_expert.data(), mlp + "shared_expert.down_proj.weight");
  }
}

TEST_CASE("the second open, also of a copy elsewhere, uses the pack of the first") {
  TempDir dir;
  Calls first, second;
  REQUIRE_OK(OpenModel(kTiny, Options(dir / "cache", &first)).status());
  CopyModel(dir / "copy");
  REQUIRE_OK(OpenModel(dir / "copy", Options(dir / "cache", &second)).status());
  CHECK(first.logs == 1);
  CHECK(second.logs == 0);
  CHECK(Packs(dir / "cache").size() == 1);
}

TEST_CASE("a changed checkpoint gets a new pack") {
  TempDir dir;
  CopyModel(dir / "m");
  Calls calls;
  REQUIRE_OK(OpenModel(dir / "m", Options(dir / "cache", &calls)).status());
  std::string bytes = test::ReadFile(dir / "m/model.safetensors");
  const auto c = Checkpoint::Open(dir / "m");
  REQUIRE_OK(c.status());
  const TensorInfo* t = (*c)->Find("model.layers.0.mlp.experts.0.gate_proj.weight");
  REQUIRE(t != nullptr);
  bytes[static_cast<size_t>(t->offset)] ^= 1;
  test::WriteFile(dir / "m/model.safetensors", bytes);
  const auto source = OpenModel(dir / "m", Options(dir / "cache", &calls));
  REQUIRE_OK(source.status());
  CHECK(calls.logs == 2);
  const RecordBuffer buffer(49152);
  REQUIRE_OK((*source)->ReadRecord(0, 0, 0, buffer.span()));
  CHECK(std::to_integer<char>(buffer.data()[0]) == bytes[static_cast<size_t>(t->offset)]);
  // A pack of the folder's former contents is nobody's any more; another checkpoint's pack stays.
  CHECK(Packs(dir / "cache").size() == 1);
  REQUIRE_OK(OpenModel(kTiny, Options(dir / "cache", &calls)).status());
  bytes[static_cast<size_t>(t->offset)] ^= 2;
  test::WriteFile(dir / "m/model.safetensors", bytes);
  REQUIRE_OK(OpenModel(dir / "m", Options(dir / "cache", &calls)).status());
  CHECK(Packs(dir / "cache").size() == 2);
}

TEST_CASE("a cache folder that everybody may write is refused, one that others may is named") {
  TempDir dir;
  Calls calls;
  fs::create_directory(dir / "cache");
  REQUIRE(::chmod((dir / "cache").c_str(), 01777) == 0);
  const auto refused = OpenModel(kTiny, Options(dir / "cache", &calls));
  REQUIRE(refused.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(refused.status().message()),
             Catch::Contains(dir / "cache") && Catch::Contains("mode 1777"));
  CHECK(calls.logs == 0);
  REQUIRE(::chmod((dir / "cache").c_str(), 0770) == 0);
  REQUIRE_OK(OpenModel(kTiny, Options(dir / "cache", &calls)).status());
  CHECK(calls.logs == 2);  // its group, and the pack
}

TEST_CASE("a pack of another format version, and a broken one, are rebuilt silently") {
  TempDir dir;
  Calls calls;
  REQUIRE_OK(OpenModel(kTiny, Options(dir / "cache", &calls)).status());
  const std::string pack = Packs(dir / "cache").at(0);
  auto manifest = nlohmann::json::parse(test::ReadFile(pack + "/moert.json"));
  manifest["format_version"] = 0;
  test::WriteFile(pack + "/moert.json", manifest.dump());
  // The leftovers of an interrupted writer and of an older library.
  fs::create_directories(pack + ".tmp-12345678");
  fs::create_directories(pack.substr(0, pack.size() - 1) + "0");
  fs::create_directories(dir / "cache/somebody-elses");
  REQUIRE_OK(OpenModel(kTiny, Options(dir / "cache", &calls)).status());
  CHECK(calls.logs == 2);
  CHECK(Packs(dir / "cache") == std::vector<std::string>{pack, dir / "cache/somebody-elses"});
  fs::resize_file(pack + "/experts-00000.safetensors", 4096);
  REQUIRE_OK(OpenModel(kTiny, Options(dir / "cache", &calls)).status());
  CHECK(calls.logs == 3);
  fs::resize_file(pack + "/constants.safetensors", 7);
  REQUIRE_OK(OpenModel(kTiny, Options(dir / "cache", &calls)).status());
  CHECK(calls.logs == 4);
}

TEST_CASE("a pack of another checkpoint under this one's name is not taken for it") {
  TempDir dir;
  Calls calls;
  REQUIRE_OK(OpenModel(kTiny, Options(dir / "cache", &calls)).status());
  const std::string pack = Packs(dir / "cache").at(0);
  CopyModel(dir / "m");
  std::string bytes = test::ReadFile(dir / "m/model.safetensors");
  bytes.back() ^= 1;
  test::WriteFile(dir / "m/model.safetensors", bytes);
  REQUIRE_OK(OpenModel(dir / "m", Options(dir / "other", &calls)).status());
  fs::remove_all(pack);
  fs::copy(Packs(dir / "other").at(0), pack, fs::copy_options::recursive);
  const std::string wrong = test::ReadFile(pack + "/moert.json");
  REQUIRE_OK(OpenModel(kTiny, Options(dir / "cache", &calls)).status());
  CHECK(calls.logs == 3);
  CHECK(test::ReadFile(pack + "/moert.json") != wrong);
}

TEST_CASE("a pack that cannot be opened for want of descriptors is not rebuilt") {
  TempDir dir;
  Calls calls;
  REQUIRE_OK(OpenModel(kTiny, Options(dir / "cache", &calls)).status());
  const std::string pack = Packs(dir / "cache").at(0);
  struct stat before {};
  REQUIRE(::stat((pack + "/moert.json").c_str(), &before) == 0);
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &old) == 0);
  const int lowest = ::dup(0);  // the descriptors below it are taken
  ::close(lowest);
  int refused = 0;
  for (int spare = 0;; ++spare) {
    const rlimit few{static_cast<rlim_t>(lowest + spare), old.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    const absl::Status status = OpenModel(kTiny, Options(dir / "cache", &calls)).status();
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &old) == 0);
    struct stat now {};
    REQUIRE(::stat((pack + "/moert.json").c_str(), &now) == 0);
    CHECK(now.st_ino == before.st_ino);
    if (status.ok()) break;
    INFO(status.ToString());
    CHECK(absl::IsResourceExhausted(status));
    ++refused;
    REQUIRE(spare < 64);
  }
  CHECK(refused > 2);
  CHECK(calls.logs == 1);
}

mode_t ModeOf(const std::string& path) {
  struct stat st {};
  REQUIRE(::lstat(path.c_str(), &st) == 0);
  return st.st_mode & 0777;
}

TEST_CASE("what the cache holds is its owner's; a lock is not followed, and waits aloud") {
  TempDir dir;
  Calls calls;
  REQUIRE_OK(OpenModel(kTiny, Options(dir / "cache", &calls)).status());
  const std::string pack = Packs(dir / "cache").at(0);
  CHECK(ModeOf(dir / "cache") == 0700);
  CHECK(ModeOf(pack) == 0700);
  for (const auto& file : fs::directory_iterator(pack)) CHECK(ModeOf(file.path()) == 0600);
  const std::string lock = pack + ".lock";
  CHECK(ModeOf(lock) == 0600);

  fs::remove_all(pack);
  const int held = ::open(lock.c_str(), O_RDWR);
  REQUIRE(::flock(held, LOCK_EX) == 0);
  absl::Status opened;
  std::thread opener([&] { opened = OpenModel(kTiny, Options(dir / "cache", &calls)).status(); });
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (calls.waits == 0 && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::close(held);
  opener.join();
  REQUIRE_OK(opened);
  CHECK(calls.logs == 2);
  CHECK(calls.waits == 1);

  fs::remove_all(pack);
  fs::remove(lock);
  test::WriteFile(dir / "elsewhere", "");
  fs::create_symlink(dir / "elsewhere", lock);
  const absl::Status linked = OpenModel(kTiny, Options(dir / "cache", &calls)).status();
  CHECK(linked.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(linked.message()), Catch::Contains("symbolic link"));
}

TEST_CASE("concurrent first opens write one pack") {
  TempDir dir;
  std::vector<Calls> calls(4);
  std::vector<absl::Status> results(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const auto s = OpenModel(kTiny, Options(dir / "cache", &calls[i]));
      results[i] = s.status();
      if (!s.ok()) return;
      const RecordBuffer buffer(49152);
      for (int l = 0; l < 8; ++l) results[i].Update((*s)->ReadRecord(l, 31, 0, buffer.span()));
    });
  }
  for (std::thread& t : threads) t.join();
  int written = 0;
  for (size_t i = 0; i < 4; ++i) {
    INFO(results[i].ToString());
    CHECK(results[i].ok());
    written += calls[i].logs;
  }
  CHECK(written == 1);
  CHECK(Packs(dir / "cache").size() == 1);
}

TEST_CASE("a cache folder may be named from the working folder") {
  TempDir dir;
  Calls calls;
  const fs::path before = fs::current_path();
  const std::string model = fs::absolute(kTiny);
  fs::current_path(dir / "");
  const absl::Status opened = OpenModel(model, Options("cache", &calls)).status();
  fs::current_path(before);
  REQUIRE_OK(opened);
  CHECK(Packs(dir / "cache").size() == 1);
}

TEST_CASE("a cache folder that cannot be used is a clear error") {
  TempDir dir;
  Calls calls;
  test::WriteFile(dir / "file", "x");
  const auto inside_a_file = OpenModel(kTiny, Options(dir / "file/cache", &calls));
  REQUIRE_FALSE(inside_a_file.ok());
  CHECK_THAT(std::string(inside_a_file.status().message()),
             Catch::Contains(dir / "file/cache") && Catch::Contains("--cache DIR"));
  CHECK(OpenModel("/proc/self", Options(dir / "c", &calls)).status().code() ==
        absl::StatusCode::kNotFound);
  if (::geteuid() != 0) {  // root may write anywhere
    fs::create_directory(dir / "read-only");
    ::chmod((dir / "read-only").c_str(), 0555);
    const auto read_only = OpenModel(kTiny, Options(dir / "read-only", &calls));
    REQUIRE_FALSE(read_only.ok());
    CHECK_THAT(std::string(read_only.status().message()),
               Catch::Contains("not writable") && Catch::Contains("--cache DIR"));
  }
  // /proc takes no folders, whoever asks.
  const auto proc = OpenModel(kTiny, Options("/proc/moert-cache", &calls));
  REQUIRE_FALSE(proc.ok());
  CHECK_THAT(std::string(proc.status().message()), Catch::Contains("/proc/moert-cache"));
}

TEST_CASE("a checkpoint that does not fit its config leaves no pack") {
  TempDir dir;
  CopyModel(dir / "m");
  const auto config = nlohmann::json::parse(test::ReadFile(dir / "m/config.json"));
  struct Case {
    const char* field;
    int value;
    const char* message;
  };
  const Case cases[] = {
      {"num_experts", 33, "tensor \"model.layers.0.mlp.experts.32.gate_proj.weight\" is missing"},
      {"num_experts", 16,
       "tensor \"model.layers.0.mlp.gate.weight\": its shape is [32, 128], "
       "config.json implies [16, 128]"},
      {"num_hidden_layers", 9,
       "tensor \"model.layers.8.mlp.experts.0.gate_proj.weight\" is missing"},
      {"moe_intermediate_size", 96,
       "tensor \"model.layers.0.mlp.experts.0.gate_proj.weight\": its shape is [64, 128], "
       "config.json implies [96, 128]"},
      {"shared_expert_intermediate_size", 64,
       "tensor \"model.layers.0.mlp.shared_expert.gate_proj.weight\""},
  };
  for (const Case& c : cases) {
    auto bad = config;
    bad[c.field] = c.value;
    test::WriteFile(dir / "m/config.json", bad.dump());
    Calls calls;
    const auto source = OpenModel(dir / "m", Options(dir / "cache", &calls));
    INFO(c.field);
    REQUIRE_FALSE(source.ok());
    CHECK_THAT(std::string(source.status().message()), Catch::Contains(c.message));
    CHECK(Packs(dir / "cache").empty());
  }
}

}  // namespace
}  // namespace moert
