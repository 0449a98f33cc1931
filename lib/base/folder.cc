#include "base/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "absl/strings/string_view.h"
#include "base/descriptor.h"
#include "base/posix_error.h"

namespace moert {
namespace {

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};
using Folder = std::unique_ptr<DIR, CloseFolder>;

// Null, with errno, if `name` is not a folder; a link to a folder is not one.
Folder OpenFolder(int parent, const char* name, int follow) noexcept {
  Descriptor fd(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | follow));
  Folder folder(fd.get() < 0 ? nullptr : ::fdopendir(fd.get()));
  if (folder != nullptr) fd.Release();
  return folder;
}

// The next name except "." and ".."; null at the end, or with errno set if it could not be read.
const char* NextName(DIR* folder) noexcept {
  errno = 0;
  while (const dirent* const entry = ::readdir(folder)) {
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") return entry->d_name;
  }
  return nullptr;
}

int RemoveAt(int parent, const char* name) noexcept {
  if (::unlinkat(parent, name, 0) == 0 || errno == ENOENT) return 0;
  if (errno != EISDIR && errno != EPERM) return errno;
  {
    const Folder folder = OpenFolder(parent, name, O_NOFOLLOW);
    if (folder == nullptr) return errno;
    while (const char* const inner = NextName(folder.get())) {
      const int error = RemoveAt(::dirfd(folder.get()), inner);
      if (error != 0) return error;
    }
    if (errno != 0) return errno;
  }
  return ::unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : errno;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FolderNames(const std::string& path) {
  const Folder folder = OpenFolder(AT_FDCWD, path.c_str(), 0);
  if (folder == nullptr) return PosixError(errno, path);
  std::vector<std::string> names;
  while (const char* const name = NextName(folder.get())) names.emplace_back(name);
  if (errno != 0) return PosixError(errno, path);
  std::sort(names.begin(), names.end());
  return names;
}

int RemoveTree(const std::string& path) noexcept { return RemoveAt(AT_FDCWD, path.c_str()); }

}  // namespace moert
