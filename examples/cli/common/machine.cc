#include "cli/common/machine.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "util/bytes_text.h"

namespace moert::cli {
namespace {

// A file under /proc or /sys: empty if it is not there.
std::string Text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// -1: not a number, as "max" is.
int64_t Number(const std::string& path) {
  int64_t value;
  return absl::SimpleAtoi(Text(path), &value) ? value : -1;
}

// "MemTotal:   24576 kB"
int64_t KilobyteField(const std::string& text, const std::string& name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    int64_t value;
    if (absl::ConsumePrefix(&line, name + ":") && absl::ConsumeSuffix(&line, "kB") &&
        absl::SimpleAtoi(line, &value)) {
      return value * 1024;
    }
  }
  return 0;
}

// The tightest limit of the process's control group and those above it.
void ReadControlGroup(const std::string& root, MemoryLimits* limits) {
  const auto consider = [&](const std::string& folder, const char* limit, const char* used) {
    const int64_t bytes = Number(folder + limit);
    if (bytes <= 0 || bytes >= int64_t{1} << 60) return;  // version 1 writes "no limit" as 2^63
    if (limits->control_group >= 0 && limits->control_group <= bytes) return;
    limits->control_group = bytes;
    limits->control_group_used = std::max<int64_t>(0, Number(folder + used));
  };
  for (const absl::string_view line : absl::StrSplit(Text(root + "/proc/self/cgroup"), '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const bool second = parts[0] == "0";
    if (!second && parts[1] != "memory") continue;
    const std::string base = root + (second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    for (std::string path = parts[2];; path.resize(path.rfind('/'))) {
      while (!path.empty() && path.back() == '/') path.pop_back();
      consider(base + path, second ? "/memory.max" : "/memory.limit_in_bytes",
               second ? "/memory.current" : "/memory.usage_in_bytes");
      if (path.find('/') == std::string::npos) break;
    }
  }
}

}  // namespace

int64_t MemoryLimits::usable() const {
  int64_t least = available > 0 ? available : installed;
  if (control_group >= 0) {
    const int64_t rest = std::max<int64_t>(0, control_group - control_group_used);
    least = least > 0 ? std::min(least, rest) : rest;
  }
  if (address_space >= 0) least = least > 0 ? std::min(least, address_space) : address_space;
  return least;
}

const char* MemoryLimits::reason() const {
  const int64_t least = usable();
  if (address_space >= 0 && least == address_space) return "the limit of `ulimit -v`";
  if (control_group >= 0 && least == std::max<int64_t>(0, control_group - control_group_used)) {
    return "left within the control group's limit";
  }
  return "of memory available";
}

MemoryLimits ReadMemoryLimits(const std::string& root) {
  MemoryLimits limits;
  const std::string info = Text(root + "/proc/meminfo");
  limits.installed = KilobyteField(info, "MemTotal");
  limits.available = KilobyteField(info, "MemAvailable");
  ReadControlGroup(root, &limits);
  rlimit space{};
  if (root.empty() && ::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    limits.address_space = static_cast<int64_t>(space.rlim_cur);
  }
  return limits;
}

NvidiaDriver ReadNvidiaDriver(const std::string& root) {
  NvidiaDriver driver;
  const std::string version = Text(root + "/proc/driver/nvidia/version");
  for (const absl::string_view word : absl::StrSplit(version.substr(0, version.find('\n')), ' ')) {
    if (!word.empty() && word[0] >= '0' && word[0] <= '9' && absl::StrContains(word, ".")) {
      driver.version = std::string(word);
      break;
    }
  }
  std::error_code ec;
  for (std::filesystem::directory_iterator it(root + "/proc/driver/nvidia/gpus", ec), end;
       !ec && it != end; it.increment(ec)) {
    const std::string info = Text(it->path().string() + "/information");
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
