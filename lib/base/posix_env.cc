#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/descriptor.h"
#include "base/errors.h"
#include "base/posix_error.h"
#include "moert/tools/env.h"

namespace moert {
namespace {

class PosixFile final : public RandomAccessFile {
 public:
  PosixFile(std::string path, Descriptor fd, Descriptor direct_fd, int64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), direct_fd_(std::move(direct_fd)), size_(size) {}

  int64_t size() const override { return size_; }
  const std::string& path() const override { return path_; }

  absl::Status Read(int64_t offset, absl::Span<std::byte> dst) const override {
    if (offset < 0 || offset > size_ || static_cast<int64_t>(dst.size()) > size_ - offset) {
      return OutOfRange("{}: cannot read {} bytes at {}: the file has {}", path_, dst.size(),
                        offset, size_);
    }
    const bool aligned =
        ((static_cast<uint64_t>(offset) | dst.size() | reinterpret_cast<uintptr_t>(dst.data())) %
         static_cast<uint64_t>(kDirectAlignment)) == 0;
    bool direct = direct_fd_.get() >= 0 && aligned;
    size_t done = 0;
    while (done < dst.size()) {
      // One call reads at most 2 GiB on Linux; ask for less, in a multiple of the alignment.
      const size_t want = std::min<size_t>(dst.size() - done, size_t{1} << 30);
      const ssize_t n = ::pread(direct ? direct_fd_.get() : fd_.get(), dst.data() + done, want,
                                static_cast<off_t>(offset + static_cast<int64_t>(done)));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && direct && errno == EINVAL) {
        direct = false;  // a file system that opens O_DIRECT but wants another alignment
        continue;
      }
      if (n < 0) return PosixError(errno, fmt::format("{}: read at {}", path_, offset));
      if (n == 0) {
        return OutOfRange("{}: the file was truncated while in use: no data at {}", path_,
                          offset + static_cast<int64_t>(done));
      }
      done += static_cast<size_t>(n);
      if (done % static_cast<size_t>(kDirectAlignment) != 0) direct = false;
    }
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const Descriptor fd_;
  const Descriptor direct_fd_;  // none where it is not possible
  const int64_t size_;
};

class PosixEnv final : public Env {
 public:
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(const std::string& path,
                                                         FileAccess access) override {
    Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd.get() < 0) return PosixError(errno, fmt::format("{}: open", path));
    struct stat st {};
    if (::fstat(fd.get(), &st) != 0) return PosixError(errno, fmt::format("{}: stat", path));
    if (!S_ISREG(st.st_mode)) return InvalidArgument("{}: not a regular file", path);
    Descriptor direct_fd;
#ifdef O_DIRECT
    if (access == FileAccess::kDirect) {
      direct_fd = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
    }
#endif
    return std::make_unique<PosixFile>(path, std::move(fd), std::move(direct_fd),
                                       static_cast<int64_t>(st.st_size));
  }
};

}  // namespace

Env* Env::Default() {
  static Env* const env = new PosixEnv;
  return env;
}

}  // namespace moert
