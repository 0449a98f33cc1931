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

TEST_CASE("CPUs: as many as the affinity mask has, and as control groups have time for") {
  const test::TempDir root;
  const CpuLimits bare = ReadCpuLimits(root.path());
  CHECK(bare.affinity >= 1);
  CHECK(bare.quota == 0);
  CHECK(bare.usable() == bare.affinity);
  CHECK(CpuLimits{16, 2}.usable() == 2);
  CHECK(CpuLimits{16, 2.5}.usable() == 2);  // a third would be stopped for half of its time
  CHECK(CpuLimits{16, 0.5}.usable() == 1);
  CHECK(CpuLimits{4, 12}.usable() == 4);

  Write(root / "proc/self/cgroup", "0::/user/job\n");
  Write(root / "sys/fs/cgroup/user/job/cpu.max", "max 100000\n");
  CHECK(ReadCpuLimits(root.path()).quota == 0);
  Write(root / "sys/fs/cgroup/user/cpu.max", "250000 100000\n");
  CHECK(ReadCpuLimits(root.path()).quota == 2.5);
  Write(root / "sys/fs/cgroup/user/job/cpu.max", "50000 50000\n");  // the tightest counts
  CHECK(ReadCpuLimits(root.path()).quota == 1);
  Write(root / "sys/fs/cgroup/user/job/cpu.max", "max\n");  // of no known form: no limit there
  CHECK(ReadCpuLimits(root.path()).quota == 2.5);

  // Version 1.
  Write(root / "proc/self/cgroup", "7:memory:/a\n3:cpuacct,cpu:/a/b\n0::/\n");
  Write(root / "sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1\n");
  Write(root / "sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n");
  CHECK(ReadCpuLimits(root.path()).quota == 0);
  Write(root / "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "150000\n");
  Write(root / "sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  CHECK(ReadCpuLimits(root.path()).quota == 1.5);
}

}  // namespace
}  // namespace moert
