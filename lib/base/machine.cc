#include "moert/tools/machine.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
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

// Bytes of a control group's cached files, which can be reclaimed; from memory.stat, such as
// "inactive_file 4096".
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

// Visits the folders of the process's control group of `controller` and of its parents, innermost
// first. `second`: whether they are of version 2.
template <typename Visit>
void ForEachControlGroup(const std::string& root, absl::string_view controller, Visit visit) {
  const std::string text = Text(root + "/proc/self/cgroup");
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const bool second = parts[0] == "0";
    const std::vector<absl::string_view> names = absl::StrSplit(parts[1], ',');
    if (!second && std::find(names.begin(), names.end(), controller) == names.end()) continue;
    std::string base = root + "/sys/fs/cgroup";
    if (!second) absl::StrAppend(&base, "/", controller);
    for (std::string path = parts[2];; path.resize(path.rfind('/'))) {
      while (!path.empty() && path.back() == '/') path.pop_back();
      visit(base + path, second);
      if (path.find('/') == std::string::npos) break;
    }
  }
}

// The tightest limit of the control groups.
void ReadMemoryGroups(const std::string& root, MemoryLimits* limits) {
  ForEachControlGroup(root, "memory", [&](const std::string& folder, bool second) {
    const char* const limit = second ? "/memory.max" : "/memory.limit_in_bytes";
    const char* const used = second ? "/memory.current" : "/memory.usage_in_bytes";
    const int64_t bytes = Number(folder + limit);
    if (bytes <= 0 || bytes >= int64_t{1} << 60) return;  // version 1 writes "no limit" as 2^63
    if (limits->control_group >= 0 && limits->control_group <= bytes) return;
    limits->control_group = bytes;
    limits->control_group_used =
        std::max<int64_t>(0, Number(folder + used) - CachedFiles(folder, second ? "" : "total_"));
  });
}

// CPUs that a control group may use at a time, from a quota such as "200000 100000" (us per
// period); 0: no limit.
double Quota(const std::string& folder, bool second) {
  int64_t quota, period;
  if (second) {
    const std::string text = Text(folder + "/cpu.max");
    const std::vector<absl::string_view> parts =
        absl::StrSplit(absl::StripAsciiWhitespace(text), ' ');
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &quota) ||
        !absl::SimpleAtoi(parts[1], &period)) {
      return 0;
    }
  } else {
    quota = Number(folder + "/cpu.cfs_quota_us");
    period = Number(folder + "/cpu.cfs_period_us");
  }
  return quota > 0 && period > 0 ? static_cast<double>(quota) / static_cast<double>(period) : 0;
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
  ReadMemoryGroups(root, &limits);
  rlimit space{};
  if (root.empty() && ::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    limits.address_space = static_cast<int64_t>(space.rlim_cur);
  }
  return limits;
}

int CpuLimits::usable() const {
  if (quota <= 0 || quota >= affinity) return affinity;
  return std::max(1, static_cast<int>(quota));
}

CpuLimits ReadCpuLimits(const std::string& root) {
  CpuLimits limits;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) {
    limits.affinity = CPU_COUNT(&set);
  } else {
    limits.affinity = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  }
  ForEachControlGroup(root, "cpu", [&](const std::string& folder, bool second) {
    const double quota = Quota(folder, second);
    if (quota > 0 && (limits.quota == 0 || quota < limits.quota)) limits.quota = quota;
  });
  return limits;
}

}  // namespace moert
