// The operating system as libmoert sees it when it reads files. A wrapper that fails or delays
// calls is how faults are injected; a host with its own storage can supply one.
#ifndef MOERT_TOOLS_ENV_H_
#define MOERT_TOOLS_ENV_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace moert {

/// A file open for reading. Thread-safe.
class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  /// Fills `dst` from byte `offset`. Short files are an error (OutOfRange), never a partial
  /// result. Blocking; never memory-mapped, so a vanishing file is a status and not a signal.
  virtual absl::Status Read(int64_t offset, absl::Span<std::byte> dst) const = 0;
  /// Size when the file was opened.
  virtual int64_t size() const = 0;
  virtual const std::string& path() const = 0;
};

/// The alignment of unbuffered reads.
inline constexpr int64_t kDirectAlignment = 4096;

enum class FileAccess : int32_t {
  kBuffered = 0,
  /// Reads whose offset, length and address are multiples of kDirectAlignment bypass the page cache
  /// where the file system can; all others, and all reads elsewhere, are buffered.
  kDirect = 1,
};

/// Thread-safe.
class Env {
 public:
  virtual ~Env() = default;
  /// NotFound, PermissionDenied, ... with path and reason in the message. Only regular files.
  virtual absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(const std::string& path,
                                                                 FileAccess access) = 0;
  /// The POSIX implementation. Lives for ever.
  static Env* Default();
};

}  // namespace moert

#endif  // MOERT_TOOLS_ENV_H_
