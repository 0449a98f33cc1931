#include "moert/tools/machine.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace moert {
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

// Cached files of a control group, which make way: of memory.stat, "inactive_file 4096".
int64_t CachedFiles(const std::string& folder, absl::string_view prefix) {
  int64_t sum = 0;
  const std::string text = Text(folder + "/memory.stat");
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    int64_t value;
    if (!absl::ConsumePrefix(&line, prefix)) continue;
    if (!absl::ConsumePrefix(&line, "inactive_file ") &&
        !absl::ConsumePrefix(&line, "active_file ")) {
      continue;
    }
    if (absl::SimpleAtoi(line, &value) && value > 0) sum += value;
  }
  return sum;
}

// The tightest limit of the process's control group and those above it.
void ReadControlGroup(const std::string& root, MemoryLimits* limits) {
  const auto consider = [&](const std::string& folder, bool second) {
    const char* const limit = second ? "/memory.max" : "/memory.limit_in_bytes";
    const char* const used = second ? "/memory.current" : "/memory.usage_in_bytes";
    const int64_t bytes = Number(folder + limit);
    if (bytes <= 0 || bytes >= int64_t{1} << 60) return;  // version 1 writes "no limit" as 2^63
    if (limits->control_group >= 0 && limits->control_group <= bytes) return;
    limits->control_group = bytes;
    limits->control_group_used =
        std::max<int64_t>(0, Number(folder + used) - CachedFiles(folder, second ? "" : "total_"));
  };
  for (const absl::string_view line : absl::StrSplit(Text(root + "/proc/self/cgroup"), '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const bool second = parts[0] == "0";
    if (!second && parts[1] != "memory") continue;
    const std::string base = root + (second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    for (std::string path = parts[2];; path.resize(path.rfind('/'))) {
      while (!path.empty() && path.back() == '/') path.pop_back();
      consider(base + path, second);
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

}  // namespace moert
