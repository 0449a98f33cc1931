// A checkpoint opened in other schemes, through a pack in the cache folder.
#include "moert/offline/open_as.h"

#include <atomic>
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
