#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/common/args.h"
#include "cli/common/machine.h"
#include "cli/common/output.h"
#include "cli/common/report.h"
#include "cli/run/advice.h"
#include "cli/run/commands.h"
#include "moert/backend.h"
#include "moert/env.h"
#include "moert/mixed_group_gemm.h"
#include "util/aligned_buffer.h"
#include "util/bytes_text.h"
#include "util/folder_names.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr char kCommand[] = "moert-run doctor";
constexpr int64_t kReadBytes = int64_t{1} << 20;
constexpr int kReaders = 4;
using Json = nlohmann::json;

struct Arguments {
  std::string model, cache, json;
  double seconds = 1;
};

// The largest weight file of a checkpoint or pack; empty: none.
std::string LargestFile(const std::string& folder) {
  std::string largest;
  uintmax_t most = 0;
  for (const std::string& name : util::FolderNames(folder)) {
    const std::string path = folder + "/" + name;
    std::error_code ec;
    const uintmax_t size =
        std::filesystem::is_regular_file(path, ec) ? std::filesystem::file_size(path, ec) : 0;
    if (ec || size <= most) continue;
    most = size;
    largest = path;
  }
  return largest;
}

// Bytes a second of reads of 1 MiB past the page cache, four at a time, as experts are read.
absl::StatusOr<double> DiskRate(const std::string& path, double seconds) {
  MOERT_ASSIGN_OR_RETURN(const auto file, Env::Default()->Open(path, FileAccess::kDirect));
  const int64_t blocks = file->size() / kReadBytes;
  if (blocks < 16) return absl::NotFoundError(path + ": too small to be measured");
  if (const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC); fd >= 0) {
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
  std::atomic<int64_t> next{0}, failed{0};
  const auto begin = std::chrono::steady_clock::now();
  const auto took = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::vector<std::jthread> readers;
  for (int t = 0; t < kReaders; ++t) {
    readers.emplace_back([&] {
      util::AlignedBuffer buffer;
      if (!buffer.Reset(kReadBytes).ok()) return void(++failed);
      while (took() < seconds) {
        // Far apart, so that nothing reads ahead.
        const int64_t block = next++;
        if (block >= blocks) return;
        const int64_t place = (block * 7919) % blocks;
        if (!file->Read(place * kReadBytes, absl::MakeSpan(buffer.data(), kReadBytes)).ok()) {
          return void(++failed);
        }
      }
    });
  }
  readers.clear();  // joins them
  if (failed > 0) return absl::UnavailableError(path + ": reading failed");
  return static_cast<double>(std::min(next.load(), blocks) * kReadBytes) / took();
}

Json MemoryJson(const MemoryLimits& m) {
  return {{"installed", m.installed},
          {"available", m.available},
          {"control_group", m.control_group < 0 ? Json(nullptr) : Json(m.control_group)},
          {"address_space", m.address_space < 0 ? Json(nullptr) : Json(m.address_space)},
          {"usable", m.usable()}};
}

// Free bytes where packs of checkpoints are kept; null if that cannot be told.
Json CacheJson(const std::string& requested) {
  const std::string folder = CacheFolder(requested);
  if (folder.empty()) return nullptr;
  std::filesystem::path there = folder;
  std::error_code ec;
  while (!std::filesystem::exists(there, ec) && there.has_parent_path() &&
         there != there.parent_path()) {
    there = there.parent_path();
  }
  struct statvfs vfs {};
  if (::statvfs(there.empty() ? "." : there.c_str(), &vfs) != 0) return nullptr;
  return {{"folder", folder},
          {"free", static_cast<int64_t>(vfs.f_bavail) * static_cast<int64_t>(vfs.f_frsize)}};
}

absl::StatusOr<Json> Examine(const Arguments& args) {
  const MemoryLimits memory = ReadMemoryLimits();
  const NvidiaDriver driver = ReadNvidiaDriver();
  const absl::Status cuda = CudaStatus();
  Json report = {{"machine", DescribeMachine()},
                 {"cuda",
                  {{"usable", cuda.ok()},
                   {"why_not", cuda.ok() ? Json(nullptr) : Json(std::string(cuda.message()))},
                   {"driver", driver.version.empty() ? Json(nullptr) : Json(driver.version)},
                   {"devices", driver.devices}}},
                 {"memory", MemoryJson(memory)},
                 {"cache", CacheJson(args.cache)},
                 {"disk_bytes_per_s", nullptr},
                 {"advice", Json::array()}};
  if (args.model.empty()) return report;
  if (const std::string file = LargestFile(args.model); !file.empty()) {
    const absl::StatusOr<double> rate = DiskRate(file, args.seconds);
    if (rate.ok()) report["disk_bytes_per_s"] = *rate;
  }
  MOERT_ASSIGN_OR_RETURN(const ModelNeeds needs, ReadModelNeeds(args.model));
  const Json& rate = report["disk_bytes_per_s"];
  for (const std::string& line :
       Advise(args.model, needs, memory.usable(), rate.is_null() ? 0 : rate.get<double>())) {
    report["advice"].push_back(line);
  }
  return report;
}

void Show(const Json& r) {
  const auto line = [](const char* name, const std::string& text) {
    Print("  {:<8} {}\n", name, text);
  };
  const auto size = [](const Json& bytes) { return util::BytesText(bytes.get<int64_t>()); };
  const Json &machine = r["machine"], &memory = r["memory"], &cuda = r["cuda"];
  line("cpu",
       fmt::format("{}, {} CPUs", machine["cpu"].get<std::string>(), machine["cpus"].get<int>()));
  line("kernels",
       fmt::format("{}", fmt::join(machine["isa"].get<std::vector<std::string>>(), ", ")));
  line("cuda", cuda["usable"].get<bool>()
                   ? fmt::format("driver {}: {}", cuda["driver"].dump(),
                                 fmt::join(cuda["devices"].get<std::vector<std::string>>(), ", "))
                   : cuda["why_not"].get<std::string>());
  if (!cuda["usable"].get<bool>() && !cuda["driver"].is_null()) {
    line("", fmt::format("but driver {} lists: {}; build with the cuda preset",
                         cuda["driver"].get<std::string>(),
                         fmt::join(cuda["devices"].get<std::vector<std::string>>(), ", ")));
  }
  line("memory",
       fmt::format("{}, {} available", size(memory["installed"]), size(memory["available"])));
  if (!memory["control_group"].is_null()) {
    line("", fmt::format("the control group allows {}", size(memory["control_group"])));
  }
  if (!memory["address_space"].is_null()) {
    line("", fmt::format("`ulimit -v` allows {}", size(memory["address_space"])));
  }
  if (!r["cache"].is_null()) {
    line("cache", fmt::format("{}: {} free", r["cache"]["folder"].get<std::string>(),
                              size(r["cache"]["free"])));
  }
  line("disk", r["disk_bytes_per_s"].is_null()
                   ? "not measured: give --model DIR with large files"
                   : fmt::format("{:.0f} MB/s, reads of 1 MiB past the page cache",
                                 r["disk_bytes_per_s"].get<double>() * 1e-6));
  for (const Json& advice : r["advice"]) Print("{}\n", advice.get<std::string>());
}

}  // namespace

int DoctorMain(int argc, const char* const* argv) {
  Arguments args;
  ArgParser parser(kCommand,
                   "Says what this machine has (kernels, devices, driver, memory and its limits, "
                   "the disk's rate) and, of a model, what would be fastest here.");
  parser.AddString("model", &args.model, "directory of a Hugging Face checkpoint");
  parser.AddString("cache", &args.cache, "folder of cached packs");
  parser.AddDouble("seconds", &args.seconds, "how long the disk is measured");
  parser.AddJson(&args.json);
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  const absl::StatusOr<Json> report = Examine(args);
  if (!report.ok()) return ReportError(kCommand, report.status());
  Show(*report);
  if (args.json.empty()) return kExitOk;
  const absl::Status written = WriteJson(args.json, *report);
  return written.ok() ? kExitOk : ReportError(kCommand, written);
}

}  // namespace moert::cli
