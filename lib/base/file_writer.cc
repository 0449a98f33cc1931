#include "base/file_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/errors.h"
#include "base/folder.h"
#include "base/posix_error.h"
#include "base/status_macros.h"

namespace moert {

absl::Status SyncDirectory(const std::string& path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return PosixError(errno, fmt::format("{}: open", path));
  // Some file systems cannot sync a folder; their renames are as durable as they get.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) {
    return PosixError(errno, fmt::format("{}: fsync", path));
  }
  return absl::OkStatus();
}

absl::StatusOr<Descriptor> CreateFile(const std::string& path, bool replace, int mode) {
  Descriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (fd.get() < 0 && errno == EEXIST && replace) {
    // The kind of file is known only after opening it. O_NONBLOCK, because a pipe may have no
    // reader.
    fd = Descriptor(::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat st {};
    if (fd.get() >= 0 && ::fstat(fd.get(), &st) == 0 && S_ISREG(st.st_mode)) {
      if (::ftruncate(fd.get(), 0) != 0) return PosixError(errno, fmt::format("{}: empty", path));
      return fd;
    }
    return AlreadyExists("{}: is there, and is no regular file that could be replaced", path);
  }
  if (fd.get() < 0) return PosixError(errno, fmt::format("{}: create", path));
  return fd;
}

absl::StatusOr<std::unique_ptr<FileWriter>> FileWriter::Create(const std::string& path, int mode) {
  MOERT_ASSIGN_OR_RETURN(Descriptor fd, CreateFile(path, /*replace=*/false, mode));
  return std::unique_ptr<FileWriter>(new FileWriter(path, std::move(fd)));
}

absl::StatusOr<std::unique_ptr<FileWriter>> FileWriter::Resume(const std::string& path,
                                                               int64_t size) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  const int fd = file.get();
  if (fd < 0) return PosixError(errno, fmt::format("{}: open", path));
  std::unique_ptr<FileWriter> writer(new FileWriter(path, std::move(file)));
  struct stat st {};
  if (::fstat(fd, &st) != 0) return PosixError(errno, fmt::format("{}: stat", path));
  if (st.st_size < size) {
    return DataLoss("{}: has {} bytes, {} were written before", path, st.st_size, size);
  }
  if (::ftruncate(fd, size) != 0) return PosixError(errno, fmt::format("{}: truncate", path));
  if (::lseek(fd, size, SEEK_SET) != size) return PosixError(errno, fmt::format("{}: seek", path));
  writer->size_ = size;
  return writer;
}

absl::Status FileWriter::Append(absl::Span<const std::byte> data) {
  if (fd_.get() < 0) return FailedPrecondition("{}: already closed", path_);
  while (!data.empty()) {
    const ssize_t n =
        ::write(fd_.get(), data.data(), std::min<size_t>(data.size(), size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PosixError(errno, fmt::format("{}: write at {}", path_, size_));
    // POSIX does not allow this for regular files. An error is better than an endless loop.
    if (n == 0) return PosixError(ENOSPC, fmt::format("{}: nothing written at {}", path_, size_));
    size_ += n;
    data.remove_prefix(n);
  }
  return absl::OkStatus();
}

absl::Status FileWriter::Append(absl::string_view text) {
  return Append(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

absl::Status FileWriter::Sync() {
  if (fd_.get() < 0) return FailedPrecondition("{}: already closed", path_);
  if (::fsync(fd_.get()) != 0) return PosixError(errno, fmt::format("{}: fsync", path_));
  return absl::OkStatus();
}

absl::Status FileWriter::Close() {
  if (fd_.get() < 0) return FailedPrecondition("{}: already closed", path_);
  const int synced = ::fsync(fd_.get());
  const int sync_error = errno;
  const int closed = ::close(fd_.Release());
  const int close_error = errno;
  if (synced != 0) return PosixError(sync_error, fmt::format("{}: fsync", path_));
  if (closed != 0) return PosixError(close_error, fmt::format("{}: close", path_));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<AtomicDirectory>> AtomicDirectory::Create(
    const std::string& final_path, int mode) {
  std::string name = final_path;
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  struct stat st {};
  if (::lstat(name.c_str(), &st) == 0) return AlreadyExists("{}: already exists", name);
  // Not mkdtemp: that makes a private folder, but a finished pack is as public as any file, and the
  // umask cannot be read without changing it for the whole process.
  for (int attempt = 0;; ++attempt) {
    uint32_t number = 0;  // std::random_device may throw, and takes a function of glibc 2.36
    if (::getentropy(&number, sizeof(number)) != 0) {
      return PosixError(errno, fmt::format("{}: getentropy", name));
    }
    std::unique_ptr<AtomicDirectory> folder(
        new AtomicDirectory(fmt::format("{}.tmp-{:08x}", name, number), name));
    if (::mkdir(folder->path_.c_str(), static_cast<mode_t>(mode)) == 0) {
      folder->created_ = true;
      return folder;
    }
    if (errno != EEXIST || attempt == 100) {
      return PosixError(errno, fmt::format("{}: cannot create a folder here", name));
    }
  }
}

AtomicDirectory::~AtomicDirectory() {
  // A file that cannot be removed, for lack of memory for instance, stays behind.
  if (created_ && !committed_) RemoveTree(path_);
}

absl::Status AtomicDirectory::Commit() {
  MOERT_RETURN_IF_ERROR(SyncDirectory(path_));
  if (::rename(path_.c_str(), final_path_.c_str()) != 0) {
    const int error = errno;
    if (error == ENOTEMPTY || error == EEXIST || error == ENOTDIR) {
      return AlreadyExists("{}: already exists", final_path_);
    }
    return PosixError(error, fmt::format("{}: rename from {}", final_path_, path_));
  }
  committed_ = true;
  const std::string parent = std::filesystem::path(final_path_).parent_path().string();
  return SyncDirectory(parent.empty() ? "." : parent);
}

}  // namespace moert
