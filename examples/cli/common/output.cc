#include "cli/common/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace moert::cli {
namespace {

std::FILE* json_stdout = nullptr;  // the real stdout, while stdout is stderr

absl::Status Failed(const std::string& what) {
  return absl::UnavailableError(fmt::format("writing to {}: {}", what, std::strerror(errno)));
}

/// Null, with errno: a link to a regular file is not followed, and a pipe that nobody reads is not
/// waited for.
std::FILE* OpenOutput(const std::string& path) {
  struct stat there {};
  const bool special = ::stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode);
  const int no_link = special ? 0 : O_NOFOLLOW;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC | no_link, 0644);
  if (fd < 0) return nullptr;
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  if (!special && ::ftruncate(fd, 0) != 0) {
    ::close(fd);
    return nullptr;
  }
  return ::fdopen(fd, "wb");
}

}  // namespace

void KeepStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // Writes to a closed stdout stay errors. open returns the lowest free number: fd.
    (void)::open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void KeepStdoutForJson() {
  if (json_stdout != nullptr) return;
  std::fflush(stdout);
  const int kept = ::dup(STDOUT_FILENO);
  if (kept < 0) return;
  json_stdout = ::fdopen(kept, "w");
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
}

absl::Status WriteOutput(const std::string& path, absl::string_view text) {
  const bool standard = path == "-";
  std::FILE* file = !standard ? OpenOutput(path) : json_stdout != nullptr ? json_stdout : stdout;
  const std::string name = standard ? "stdout" : path;
  if (file == nullptr) return Failed(name);
  bool ok = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  ok = (standard ? std::fflush(file) : std::fclose(file)) == 0 && ok;
  return ok ? absl::OkStatus() : Failed(name);
}

bool WouldOverwrite(const std::string& path) {
  struct stat info {};
  return path != "-" && ::stat(path.c_str(), &info) == 0 &&
         (S_ISREG(info.st_mode) || S_ISDIR(info.st_mode));
}

absl::Status CheckPlace(const std::string& path) {
  if (path == "-" || ::access(path.c_str(), F_OK) == 0) return absl::OkStatus();
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{}: nothing can be written to {}: {}", path, folder, std::strerror(errno)));
}

absl::Status FlushStdout() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return Failed("stdout");
  return absl::OkStatus();
}

}  // namespace moert::cli
