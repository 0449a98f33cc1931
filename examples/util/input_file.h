// Text and token files that a person names: regular files, and pipes with a writer.
#ifndef MOERT_EXAMPLES_UTIL_INPUT_FILE_H_
#define MOERT_EXAMPLES_UTIL_INPUT_FILE_H_

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace moert::util {

/// Reads such a file once, from its beginning. Errors name it.
class InputFile {
 public:
  explicit InputFile(std::string path) : path_(std::move(path)) {
    // Without O_NONBLOCK a pipe's open waits for a writer.
    errno = 0;
    fd_ = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat info {};
    if (fd_ < 0 || ::fstat(fd_, &info) != 0) {
      status_ = Error(std::strerror(errno));
    } else if (S_ISDIR(info.st_mode)) {
      status_ = Error("is a directory");
    } else if (S_ISFIFO(info.st_mode)) {
      begun_ = ::read(fd_, &first_, 1) == 1;  // no byte and no error: no writer
      if (!begun_ && errno != EAGAIN) status_ = Error("is a pipe that nobody writes to");
    } else if (!S_ISREG(info.st_mode)) {
      status_ = Error("is neither a file nor a pipe");
    }
    if (status_.ok()) ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) & ~O_NONBLOCK);
  }
  ~InputFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  /// The status of opening the file.
  const absl::Status& status() const { return status_; }
  /// Returns fewer bytes than `size` at the end of the file.
  absl::StatusOr<size_t> Read(char* to, size_t size) {
    size_t done = 0;
    if (begun_ && size > 0) {
      to[done++] = first_;
      begun_ = false;
    }
    while (done < size) {
      const ssize_t got = ::read(fd_, to + done, size - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error(std::strerror(errno));
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    return done;
  }
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", what));
  }

 private:
  const std::string path_;
  int fd_ = -1;
  bool begun_ = false;  // a pipe's first byte has been read
  char first_ = 0;
  absl::Status status_;
};

}  // namespace moert::util

#endif  // MOERT_EXAMPLES_UTIL_INPUT_FILE_H_
