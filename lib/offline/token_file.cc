#include "moert/offline/token_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "base/descriptor.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/status_macros.h"

namespace moert {
namespace {

constexpr int64_t kMaxTokenFileBytes = int64_t{4} << 30;

/// Opens a regular file, or a pipe with a writer: without O_NONBLOCK a pipe's open waits for one.
/// *begun receives the bytes that had to be read to detect a writer.
absl::StatusOr<Descriptor> OpenTokens(const std::string& path, std::string* begun) {
  const auto error = [&](const char* what) { return InvalidArgument("{}: {}", path, what); };
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (fd.get() < 0 || ::fstat(fd.get(), &info) != 0) return error(std::strerror(errno));
  if (S_ISDIR(info.st_mode)) return error("is a directory");
  if (S_ISFIFO(info.st_mode)) {
    char first = 0;
    errno = 0;
    if (::read(fd.get(), &first, 1) == 1) {
      begun->push_back(first);
    } else if (errno != EAGAIN) {
      return error("is a pipe that nobody writes to");
    }
  } else if (!S_ISREG(info.st_mode)) {
    return error("is neither a file nor a pipe");
  }
  ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
  return fd;
}

// At most `read_bytes` bytes of a regular file or pipe that has no more than `max_bytes`.
absl::StatusOr<std::string> ReadBytes(const std::string& path, int64_t max_bytes,
                                      int64_t read_bytes) {
  std::string bytes;
  MOERT_ASSIGN_OR_RETURN(Descriptor fd, OpenTokens(path, &bytes));
  std::unique_ptr<FILE, int (*)(FILE*)> file(::fdopen(fd.get(), "rb"), std::fclose);
  if (file == nullptr) return InvalidArgument("{}: {}", path, std::strerror(errno));
  (void)fd.Release();
  char buffer[1 << 16];
  while (static_cast<int64_t>(bytes.size()) < read_bytes) {
    const size_t want = std::min<int64_t>(sizeof(buffer), read_bytes - bytes.size());
    const size_t got = std::fread(buffer, 1, want, file.get());
    bytes.append(buffer, got);
    if (static_cast<int64_t>(bytes.size()) > max_bytes) {
      return InvalidArgument("{}: larger than the limit of {} bytes", path, max_bytes);
    }
    if (got < want) break;
  }
  if (std::ferror(file.get())) return InvalidArgument("{}: {}", path, std::strerror(errno));
  return bytes;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ReadTokenFile(const std::string& path, int64_t vocab_size,
                                                   int64_t limit) try {
  const int64_t width = absl::EndsWith(path, ".u32") ? 4 : 2;
  const int64_t wanted =
      limit > 0 && limit < kMaxTokenFileBytes / width ? width * limit : kMaxTokenFileBytes + 1;
  MOERT_ASSIGN_OR_RETURN(const std::string bytes, ReadBytes(path, kMaxTokenFileBytes, wanted));
  if (bytes.empty()) return InvalidArgument("{}: is empty", path);
  if (static_cast<int64_t>(bytes.size()) % width != 0) {
    return InvalidArgument("{}: {} bytes, no multiple of {}: not a file of uint{} ids", path,
                           bytes.size(), width, 8 * width);
  }
  std::vector<int32_t> ids(bytes.size() / static_cast<size_t>(width));
  for (size_t i = 0; i < ids.size(); ++i) {
    uint32_t id = 0;
    for (int64_t b = 0; b < width; ++b) {
      id |= uint32_t{static_cast<uint8_t>(
                bytes[i * static_cast<size_t>(width) + static_cast<size_t>(b)])}
            << (8 * b);
    }
    if (id >= static_cast<uint64_t>(vocab_size)) {
      return InvalidArgument("{}: token {} at index {} is not in 0..{}", path, id, i,
                             vocab_size - 1);
    }
    ids[i] = static_cast<int32_t>(id);
  }
  return ids;
} catch (...) {
  return ExceptionStatus(path);
}

}  // namespace moert
