// A file written piece by piece; the first error is kept.
#ifndef MOERT_LIB_TRACE_STDIO_FILE_H_
#define MOERT_LIB_TRACE_STDIO_FILE_H_

#include <cerrno>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file_writer.h"
#include "base/posix_error.h"
#include "fmt/format.h"
#include "moert/tools/trace.h"

namespace moert {

class StdioFile {
 public:
  StdioFile(std::string path, Existing existing) : path_(std::move(path)) {
    absl::StatusOr<Descriptor> fd = CreateFile(path_, existing == Existing::kReplace);
    if (!fd.ok()) {
      status_ = fd.status();
      return;
    }
    file_ = ::fdopen(fd->get(), "wb");
    if (file_ == nullptr) {
      status_ = PosixError(errno, fmt::format("{}: create", path_));
      return;
    }
    (void)fd->Release();
    std::setvbuf(file_, nullptr, _IOFBF, size_t{1} << 20);
  }
  ~StdioFile() {
    if (file_ != nullptr) std::fclose(file_);
  }
  StdioFile(const StdioFile&) = delete;
  StdioFile& operator=(const StdioFile&) = delete;

  void Write(absl::string_view bytes) {
    if (!status_.ok() || std::fwrite(bytes.data(), 1, bytes.size(), file_) == bytes.size()) return;
    status_ = PosixError(errno, fmt::format("{}: write", path_));
  }
  absl::Status Close() {
    if (file_ == nullptr) return status_;
    if (std::fclose(std::exchange(file_, nullptr)) != 0 && status_.ok()) {
      status_ = PosixError(errno, fmt::format("{}: close", path_));
    }
    return status_;
  }
  const absl::Status& status() const { return status_; }

 private:
  const std::string path_;
  FILE* file_ = nullptr;
  absl::Status status_;
};

}  // namespace moert

#endif  // MOERT_LIB_TRACE_STDIO_FILE_H_
