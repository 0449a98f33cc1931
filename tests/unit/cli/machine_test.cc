#include "cli/common/machine.h"

#include <filesystem>

#include "cli/common/progress.h"
#include "support/catch.h"
#include "support/temp_dir.h"

namespace moert::cli {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

void Write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  test::WriteFile(path, text);
}

TEST_CASE("a budget that does not fit is warned of with the sum and a way out") {
  MemoryLimits limits;
  limits.available = 8 * kGiB;
  CHECK(MemoryWarning(limits, 5 * kGiB, 3 * kGiB).empty());
  const std::string warning = MemoryWarning(limits, 6 * kGiB, 3 * kGiB);
  CHECK(
      warning ==
      "warning: 6.00 GiB of budget + 3.00 GiB of dense weights and KV cache = 9.00 GiB, and there "
      "are 8.00 GiB of memory available; a --budget of 5.00 GiB would fit");
  CHECK(MemoryWarning({}, 6 * kGiB, 0).empty());  // nothing known
}

TEST_CASE("the driver and its devices, as it lists them") {
  const test::TempDir root;
  CHECK(ReadNvidiaDriver(root.path()).version.empty());
  Write(
      root / "proc/driver/nvidia/version",
      "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Release\nGCC version: 12.2.0\n");
  Write(root / "proc/driver/nvidia/gpus/0000:01:00.0/information",
        "Model: \t\t NVIDIA H200\nIRQ: 1\n");
  const NvidiaDriver driver = ReadNvidiaDriver(root.path());
  CHECK(driver.version == "580.65.06");
  CHECK(driver.devices == std::vector<std::string>{"NVIDIA H200"});
}

TEST_CASE("progress: share, rate and time left; the time alone where the end is unknown") {
  CHECK(ProgressText("experts", 30, 120, 10, false) == "experts: 30 of 120 (25%), 3/s, 30 s left");
  CHECK(ProgressText("experts", 0, 120, 10, false) == "experts: 0 of 120 (0%)");
  CHECK(ProgressText("reading", int64_t{1} << 30, int64_t{4} << 30, 8, true) ==
        "reading: 1.00 GiB of 4.00 GiB (25%), 128.0 MiB/s, 24 s left");
  CHECK(ProgressText("experts", 1, 1000, 10, false) ==
        "experts: 1 of 1000 (0%), 0.1/s, 2.8 h left");
  CHECK(ProgressText("opening", 0, 0, 180, false) == "opening: 3 min");
}

}  // namespace
}  // namespace moert::cli
