// Shared by the fuzz targets: files that are bytes in memory, and a check that counts in every
// build.
//
// A target is one file NAME_fuzz.cc with LLVMFuzzerTestOneInput: any bytes must give a value or an
// error. It is linked with libFuzzer in the preset "fuzz", and with replay_main.cc everywhere else,
// where ctest feeds it the files of corpus/NAME.
#ifndef MOERT_TESTS_FUZZ_FUZZ_H_
#define MOERT_TESTS_FUZZ_FUZZ_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "moert/tools/env.h"
#include "pack/sealed_json.h"

#define FUZZ_REQUIRE(condition)                                                    \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

namespace moert::fuzz {

/// A file that is a string.
class MemoryFile final : public RandomAccessFile {
 public:
  MemoryFile(std::string path, std::string bytes)
      : MemoryFile(std::move(path), std::make_shared<const std::string>(std::move(bytes))) {}
  MemoryFile(std::string path, std::shared_ptr<const std::string> bytes)
      : path_(std::move(path)), bytes_(std::move(bytes)) {}
  absl::Status Read(int64_t offset, absl::Span<std::byte> dst) const override {
    if (offset < 0 || offset > size() || static_cast<int64_t>(dst.size()) > size() - offset) {
      return absl::OutOfRangeError(path_ + ": short");
    }
    if (!dst.empty()) std::memcpy(dst.data(), bytes_->data() + offset, dst.size());
    return absl::OkStatus();
  }
  int64_t size() const override { return static_cast<int64_t>(bytes_->size()); }
  const std::string& path() const override { return path_; }

 private:
  const std::string path_;
  const std::shared_ptr<const std::string> bytes_;
};

/// Every path is a file of the same bytes.
class MemoryEnv final : public Env {
 public:
  explicit MemoryEnv(std::string bytes)
      : bytes_(std::make_shared<const std::string>(std::move(bytes))) {}
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(const std::string& path,
                                                         FileAccess) override {
    return std::make_unique<MemoryFile>(path, bytes_);
  }

 private:
  const std::shared_ptr<const std::string> bytes_;
};

/// For files that carry their checksum: as they are, or, of odd size, with one that is right.
inline std::string SealedIfOdd(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  return size % 2 == 0 ? bytes : SealedText(bytes);
}

/// For readers that take a path: a file without a name, rewritten at each call.
inline std::string ScratchFile(const uint8_t* data, size_t size) {
  static const int fd = ::memfd_create("fuzz", MFD_CLOEXEC);
  FUZZ_REQUIRE(fd >= 0);
  FUZZ_REQUIRE(::ftruncate(fd, 0) == 0);
  FUZZ_REQUIRE(::pwrite(fd, data, size, 0) == static_cast<ssize_t>(size));
  return "/proc/self/fd/" + std::to_string(fd);
}

/// For readers of a model's folder: one of its own, of files that are rewritten at each call.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "fuzz-XXXXXX").string();
    FUZZ_REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string Write(const char* name, absl::string_view bytes) const {
    const std::string path = path_ + "/" + name;
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    FUZZ_REQUIRE(file.good());
    return path;
  }
  void Remove(const char* name) const { std::filesystem::remove(path_ + "/" + name); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace moert::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

#endif  // MOERT_TESTS_FUZZ_FUZZ_H_
