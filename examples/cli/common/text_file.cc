#include "cli/common/text_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace moert::cli {

absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes) {
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(fmt::format("{}: {}", path, what));
  };
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  struct stat info {};
  if (file == nullptr || fstat(fileno(file.get()), &info) != 0) return error(std::strerror(errno));
  if (S_ISDIR(info.st_mode)) return error("is a directory");
  std::string text;
  char buffer[1 << 16];
  while (const size_t got = std::fread(buffer, 1, sizeof(buffer), file.get())) {
    text.append(buffer, got);
    if (static_cast<int64_t>(text.size()) > max_bytes) {
      return error(fmt::format("larger than the limit of {} bytes", max_bytes));
    }
  }
  if (std::ferror(file.get())) return error(std::strerror(errno));
  return text;
}

}  // namespace moert::cli
