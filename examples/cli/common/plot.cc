#include "cli/common/plot.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "cli/common/output.h"
#include "cli/common/report.h"
#include "util/status_macros.h"

extern char** environ;

namespace moert::cli {
namespace {

// Beside the tools, installed or not.
std::string ScriptPath() {
  std::error_code ec;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", ec);
  return (self.parent_path().parent_path() / "share/moert/plot.py").string();
}

/// Removes the file when it dies.
struct Scratch {
  std::string path;
  ~Scratch() { ::unlink(path.c_str()); }
};

absl::Status Draw(const std::string& picture, const nlohmann::json& report) {
  const Scratch scratch{
      (std::filesystem::temp_directory_path() / fmt::format("moert-plot-{}.json", ::getpid()))
          .string()};
  MOERT_RETURN_IF_ERROR(WriteJson(scratch.path, report));
  std::string arguments[] = {"python3", ScriptPath(), scratch.path, picture};
  char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(),
                  arguments[3].data(), nullptr};
  pid_t child = 0;
  int status = 0;
  if (::posix_spawnp(&child, "python3", nullptr, nullptr, argv, environ) != 0) {
    return absl::FailedPreconditionError("--plot needs python3 and matplotlib");
  }
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::FailedPreconditionError(fmt::format(
        "--plot: {} could not draw {}; it needs python3 with matplotlib", arguments[1], picture));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteFigures(const std::string& json, const std::string& picture,
                          const nlohmann::json& report) {
  if (!json.empty()) MOERT_RETURN_IF_ERROR(WriteJson(json, report));
  return picture.empty() ? absl::OkStatus() : Draw(picture, report);
}

}  // namespace moert::cli
