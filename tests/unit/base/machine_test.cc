#include "moert/tools/machine.h"

#include <filesystem>

#include "support/catch.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

void Write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  test::WriteFile(path, text);
}

TEST_CASE("memory: what is installed, available, and allowed by control groups") {
  const test::TempDir root;
  CHECK(ReadMemoryLimits(root.path()).usable() == 0);  // nothing known
  Write(root / "proc/meminfo",
        "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n");
  MemoryLimits limits = ReadMemoryLimits(root.path());
  CHECK(limits.installed == 16 * kGiB);
  CHECK(limits.usable() == 8 * kGiB);
  CHECK(std::string(limits.reason()) == "of memory available");

  Write(root / "proc/self/cgroup", "0::/user/job\n");
  Write(root / "sys/fs/cgroup/user/job/memory.max", "max\n");
  CHECK(ReadMemoryLimits(root.path()).control_group == -1);
  Write(root / "sys/fs/cgroup/user/memory.max", std::to_string(4 * kGiB) + "\n");
  Write(root / "sys/fs/cgroup/user/memory.current", std::to_string(kGiB) + "\n");
  limits = ReadMemoryLimits(root.path());
  CHECK(limits.control_group == 4 * kGiB);
  CHECK(limits.usable() == 3 * kGiB);
  // Cached files make way.
  Write(root / "sys/fs/cgroup/user/memory.stat",
        "anon 1\ninactive_file 268435456\nactive_file 268435456\n");
  limits = ReadMemoryLimits(root.path());
  CHECK(limits.control_group_used == kGiB / 2);
  CHECK(limits.usable() == 7 * kGiB / 2);
  CHECK(std::string(limits.reason()) == "left within the control group's limit");

  // Version 1, where no limit is a huge one.
  Write(root / "proc/self/cgroup", "7:cpu:/a\n3:memory:/a\n");
  Write(root / "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(ReadMemoryLimits(root.path()).control_group == -1);
  Write(root / "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824\n");
  CHECK(ReadMemoryLimits(root.path()).usable() == kGiB);
  Write(root / "sys/fs/cgroup/memory/a/memory.usage_in_bytes", "805306368\n");
  Write(root / "sys/fs/cgroup/memory/a/memory.stat",
        "inactive_file 1\ntotal_inactive_file 268435456\ntotal_active_file 0\n");
  CHECK(ReadMemoryLimits(root.path()).usable() == kGiB / 2);
}

}  // namespace
}  // namespace moert
