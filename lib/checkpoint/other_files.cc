#include "checkpoint/other_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "base/folder.h"
#include "base/printable.h"

namespace moert {
namespace {

namespace fs = std::filesystem;

std::string OtherFile(const fs::path& file) {
  const std::string extension = file.extension().string();
  const std::string name = Printable(file.filename().string());
  if (extension == ".gguf") return fmt::format("; {} is a GGUF file; {}", name, kGgufWays);
  if (extension == ".bin" || extension == ".pt" || extension == ".pth") {
    return fmt::format("; {} may be a PyTorch file: save the model with safe_serialization", name);
  }
  return "";
}

}  // namespace

std::string OtherFiles(const std::string& path) {
  std::error_code ec;
  const fs::file_type type = fs::status(path, ec).type();
  if (type == fs::file_type::not_found) return "; there is no such folder";
  if (type != fs::file_type::directory) {
    const std::string format = OtherFile(path);
    return format.empty() ? "; a checkpoint is a folder, this is a file" : format;
  }
  if (fs::exists(path + "/moert.json", ec)) return "; the folder is an expert pack";
  const absl::StatusOr<std::vector<std::string>> names = FolderNames(path);
  if (!names.ok()) return "";
  for (const std::string& name : *names) {
    std::string format = OtherFile(name);
    if (!format.empty()) return format;
  }
  return "";
}

}  // namespace moert
