// Writes files so that they are either complete and on disk, or do not exist.
#ifndef MOERT_LIB_BASE_FILE_WRITER_H_
#define MOERT_LIB_BASE_FILE_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/descriptor.h"

namespace moert {

/// Creates a file for writing. AlreadyExists if the path is a file, link, device or pipe; links are
/// not followed and pipes not waited for. `replace`: a regular file is emptied instead, others are
/// still refused. The umask is removed from `mode`.
absl::StatusOr<Descriptor> CreateFile(const std::string& path, bool replace = false,
                                      int mode = 0644);

/// Appends to one file. Not thread-safe.
class FileWriter {
 public:
  /// AlreadyExists if there is a file. The umask is removed from `mode`.
  static absl::StatusOr<std::unique_ptr<FileWriter>> Create(const std::string& path,
                                                            int mode = 0644);
  /// Continues a file of at least `size` bytes, of which only the first `size` are kept. DataLoss
  /// if it is shorter.
  static absl::StatusOr<std::unique_ptr<FileWriter>> Resume(const std::string& path, int64_t size);
  ~FileWriter() = default;
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  absl::Status Append(absl::Span<const std::byte> data);
  absl::Status Append(absl::string_view text);
  /// Flushes the appended data to the disk.
  absl::Status Sync();
  /// Flushes to the disk and closes. The file is complete only after this returns OK.
  absl::Status Close();
  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  FileWriter(std::string path, Descriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  const std::string path_;
  Descriptor fd_;
  int64_t size_ = 0;
};

/// A folder being written under a temporary name beside its final one; removed unless committed.
class AtomicDirectory {
 public:
  /// Creates `<final_path>.tmp-<random>`, with `mode` less the umask. The parent must exist.
  static absl::StatusOr<std::unique_ptr<AtomicDirectory>> Create(const std::string& final_path,
                                                                 int mode = 0777);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  const std::string& path() const { return path_; }
  /// Makes the folder durable and gives it its final name. AlreadyExists if that is taken.
  absl::Status Commit();

 private:
  AtomicDirectory(std::string path, std::string final_path)
      : path_(std::move(path)), final_path_(std::move(final_path)) {}
  const std::string path_;
  const std::string final_path_;
  bool created_ = false;
  bool committed_ = false;
};

/// Makes the creation, renaming and removal of entries in a folder durable.
absl::Status SyncDirectory(const std::string& path);

}  // namespace moert

#endif  // MOERT_LIB_BASE_FILE_WRITER_H_
