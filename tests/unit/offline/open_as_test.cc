// A checkpoint opened in other schemes, through a pack in the cache folder.
#include "moert/offline/open_as.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "support/catch.h"
#include "support/temp_dir.h"
#include "support/tiny_model.h"

namespace moert {
namespace {

OpenAsOptions InFourBits(const std::string& cache) {
  OpenAsOptions options;
  options.schemes = {*Scheme::Parse("w4a16_g128")};
  options.cache_dir = cache;
  options.threads = 1;
  return options;
}

TEST_CASE("of several that open a checkpoint at once, one quantizes and the others wait") {
  const test::TempDir dir;
  std::atomic<int> quantized{0}, waited{0}, opened{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      OpenAsOptions options = InFourBits(dir.path());
      bool layers = false;
      options.progress = [&](int64_t, int64_t) { layers = true; };
      options.log = [&](const std::string& line) { waited += line.rfind("waiting: ", 0) == 0; };
      const auto source = OpenModelAs(TinyModelDir(), options);
      quantized += layers;
      opened += source.ok() && (*source)->version_name(0) == "w4a16_g128";
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(opened == 3);
  CHECK(quantized == 1);
  CHECK(waited <= 2);
}

/// The first experts of a layer in w8, the others in w4.
PackVersion Mixed(int first) {
  const auto config = LoadHfConfig(TinyModelDir());
  REQUIRE_OK(config.status());
  PackVersion version{"mixed",
                      {ExpertFormat::Uniform(*Scheme::Parse("w8a16_g128")),
                       ExpertFormat::Uniform(*Scheme::Parse("w4a16_g128"))},
                      {}};
  for (const MoeLayerSpec& layer : config->moe.layers) {
    std::vector<int>& of = version.assignment.emplace_back(layer.num_experts, 1);
    std::fill_n(of.begin(), first, 0);
  }
  return version;
}

TEST_CASE("a version of several schemes is quantized once, and is not taken for another") {
  const test::TempDir dir;
  bool quantized = false;
  const auto open = [&](PackVersion version) {
    OpenAsOptions options = InFourBits(dir.path());
    options.plans.push_back(std::move(version));
    options.progress = [&](int64_t, int64_t) { quantized = true; };
    quantized = false;
    return OpenModelAs(TinyModelDir(), options);
  };
  for (const int first : {3, 5}) {
    const auto source = open(Mixed(first));
    REQUIRE_OK(source.status());
    CHECK(quantized);
    REQUIRE((*source)->num_versions() == 2);
    CHECK((*source)->version_name(0) == "mixed");
    CHECK((*source)->layout(2, first - 1, 0).format.gate.Name() == "w8a16_g128");
    CHECK((*source)->layout(2, first, 0).format.gate.Name() == "w4a16_g128");
  }
  REQUIRE_OK(open(Mixed(3)).status());
  CHECK(!quantized);
  PackVersion wrong = Mixed(4);
  wrong.assignment[1][7] = 2;
  CHECK(absl::IsInvalidArgument(open(wrong).status()));
  wrong = Mixed(4);
  wrong.assignment.pop_back();
  CHECK(absl::IsInvalidArgument(open(wrong).status()));
}

int ModeOf(const std::string& path) {
  struct stat st {};
  REQUIRE(::stat(path.c_str(), &st) == 0);
  return static_cast<int>(st.st_mode & 0777);
}

TEST_CASE("a cached version is its owner's, and of the checkpoint that it is named for") {
  const test::TempDir dir;
  const mode_t before = ::umask(0);
  const auto pack = CachedPack(TinyModelDir(), InFourBits(dir.path()));
  ::umask(before);
  REQUIRE_OK(pack.status());
  CHECK(ModeOf(*pack) == 0700);
  for (const auto& file : std::filesystem::directory_iterator(*pack)) {
    CHECK(ModeOf(file.path()) == 0600);
  }
  const std::string model = dir / "other model";
  std::filesystem::create_directory(model);
  for (const auto& file : std::filesystem::directory_iterator(TinyModelDir())) {
    if (file.is_regular_file()) std::filesystem::copy(file, model);
  }
  test::WriteFile(model + "/model.safetensors", [&] {
    std::string bytes = test::ReadFile(model + "/model.safetensors");
    bytes.back() ^= 1;
    return bytes;
  }());
  const auto other = CachedPack(model, InFourBits(dir.path()));
  REQUIRE_OK(other.status());
  std::filesystem::remove_all(*pack);
  std::filesystem::rename(*other, *pack);
  const auto source = OpenModelAs(TinyModelDir(), InFourBits(dir.path()));
  CHECK(source.status().code() == absl::StatusCode::kDataLoss);
}

TEST_CASE("who waits for the pack of another can give up") {
  const test::TempDir dir;
  OpenAsOptions first = InFourBits(dir.path());
  std::atomic<bool> writing{false}, gave_up{false};
  first.progress = [&](int64_t, int64_t) {
    writing = true;
    while (!gave_up) std::this_thread::yield();
  };
  std::thread writer([&] { CHECK(OpenModelAs(TinyModelDir(), first).ok()); });
  while (!writing) std::this_thread::yield();
  OpenAsOptions second = InFourBits(dir.path());
  second.cancelled = [] { return true; };
  const auto source = OpenModelAs(TinyModelDir(), second);
  gave_up = true;
  writer.join();
  CHECK(source.status().code() == absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace moert
