#include "cli/common/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "util/bytes_text.h"
#include "util/folder_names.h"

namespace moert::cli {
namespace {

// A file under /proc: empty if it is not there.
std::string Text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

NvidiaDriver ReadNvidiaDriver(const std::string& root) {
  NvidiaDriver driver;
  const std::string version = Text(root + "/proc/driver/nvidia/version");
  for (const absl::string_view word : absl::StrSplit(version.substr(0, version.find('\n')), ' ')) {
    if (!word.empty() && word[0] >= '0' && word[0] <= '9' && absl::StrContains(word, ".")) {
      driver.version = std::string(word);
      break;
    }
  }
  const std::string gpus = root + "/proc/driver/nvidia/gpus/";
  for (const std::string& name : util::FolderNames(gpus)) {
    const std::string info = Text(gpus + name + "/information");
    for (absl::string_view line : absl::StrSplit(info, '\n')) {
      if (!absl::ConsumePrefix(&line, "Model:")) continue;
      driver.devices.emplace_back(absl::StripAsciiWhitespace(line));
    }
  }
  std::sort(driver.devices.begin(), driver.devices.end());
  return driver;
}

std::string CacheFolder(const std::string& requested) {
  if (!requested.empty()) return requested;
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (xdg != nullptr && xdg[0] == '/') return std::string(xdg) + "/moert";
  const char* home = std::getenv("HOME");
  return home != nullptr && home[0] == '/' ? std::string(home) + "/.cache/moert" : "";
}

std::string MemoryWarning(const MemoryLimits& limits, int64_t budget, int64_t host) {
  const int64_t usable = limits.usable();
  if (usable <= 0 || budget + host <= usable) return "";
  return fmt::format(
      "warning: {} of budget + {} of dense weights and KV cache = {}, and there are {} {}; a "
      "--budget of {} would fit",
      util::BytesText(budget), util::BytesText(host), util::BytesText(budget + host),
      util::BytesText(usable), limits.reason(),
      util::BytesText(std::max<int64_t>(0, usable - host)));
}

}  // namespace moert::cli
