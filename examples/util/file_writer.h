// Writes a new file, for measurements that read it back from the disk.
#ifndef MOERT_EXAMPLES_UTIL_FILE_WRITER_H_
#define MOERT_EXAMPLES_UTIL_FILE_WRITER_H_

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace moert::util {

class FileWriter {
 public:
  /// AlreadyExists if there is a file.
  static absl::StatusOr<std::unique_ptr<FileWriter>> Create(const std::string& path) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": create"));
    return std::unique_ptr<FileWriter>(new FileWriter(path, fd));
  }
  ~FileWriter() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  absl::Status Append(absl::Span<const std::byte> data) {
    while (!data.empty()) {
      const ssize_t n = ::write(fd_, data.data(), data.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path_, ": write at ", size_));
      size_ += n;
      data.remove_prefix(static_cast<size_t>(n));
    }
    return absl::OkStatus();
  }
  /// Returns when the data is on the disk.
  absl::Status Close() {
    const bool synced = ::fsync(fd_) == 0;
    const int error = errno;
    ::close(fd_);
    fd_ = -1;
    return synced ? absl::OkStatus() : absl::ErrnoToStatus(error, absl::StrCat(path_, ": fsync"));
  }
  int64_t size() const { return size_; }

 private:
  FileWriter(const std::string& path, int fd) : path_(path), fd_(fd) {}
  const std::string path_;
  int fd_;
  int64_t size_ = 0;
};

}  // namespace moert::util

#endif  // MOERT_EXAMPLES_UTIL_FILE_WRITER_H_
