#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/common/args.h"
#include "cli/common/machine.h"
#include "cli/common/output.h"
#include "cli/common/progress.h"
#include "cli/common/report.h"
#include "cli/doctor/advice.h"
#include "cli/doctor/model_facts.h"
#include "cli/doctor/rates.h"
#include "cli/run/commands.h"
#include "moert/backend.h"
#include "moert/mixed_group_gemm.h"
#include "util/bytes_text.h"
#include "util/folder_names.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr char kDoctor[] = "moert-run doctor";
using Json = nlohmann::json;

struct DoctorArguments {
  std::string model, positional, cache, json;
  double seconds = 1;
  int64_t context = 4096;
  bool quiet = false;
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

Json DeviceJson(const Rates& rates) {
  if (!rates.device.ok()) return nullptr;
  return {{"name", rates.device->name},
          {"total", rates.device->total},
          {"free", rates.device->free},
          {"memory_bytes_per_s", rates.device->memory_bytes_per_s},
          {"link_bytes_per_s", rates.device->link_bytes_per_s}};
}

Json ModelJson(const ModelFacts& f) {
  return {{"architecture", f.architecture},
          {"from", f.kind == ModelKind::kConfig       ? "config"
                   : f.kind == ModelKind::kCheckpoint ? "checkpoint"
                                                      : "gguf"},
          {"stored", f.stored.empty() ? f.schemes.front().scheme : f.stored},
          {"moe_layers", f.moe_layers},
          {"experts", f.experts},
          {"top_k", f.top_k},
          {"expert_bytes", f.schemes.front().bytes},
          {"dense_bytes", f.dense_bytes},
          {"kv_bytes", f.kv_bytes},
          {"context", f.context}};
}

// Describes the model, then names the fastest way to run it, in a few lines.
void ShowAdvice(const Json& r) {
  const Json& m = r["model"];
  Print("{}: {} MoE layers of {} experts, {} a token, stored as {}{}\n",
        m["architecture"].get<std::string>(), m["moe_layers"].get<int>(),
        m["experts"].get<int64_t>(), m["top_k"].get<int64_t>(), m["stored"].get<std::string>(),
        m["from"] == "config" ? " (from config.json alone)" : "");
  for (const Json& line : r["advice"]["lines"]) Print("{}\n", line.get<std::string>());
  for (const Json& line : r["advice"]["assumptions"]) Print("  {}\n", line.get<std::string>());
}

absl::StatusOr<Json> Examine(const DoctorArguments& args) {
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
                 {"device", nullptr},
                 {"advice", nullptr}};
  if (args.model.empty()) return report;
  MOERT_ASSIGN_OR_RETURN(const ModelFacts facts, ReadModelFacts(args.model, args.context));
  Progress progress("measuring this machine, some seconds", !args.quiet);
  const bool file = facts.kind == ModelKind::kGguf;
  const Rates rates = MeasureRates(&facts, file ? args.model : LargestFile(args.model),
                                   memory.usable(), args.seconds);
  if (rates.disk > 0) report["disk_bytes_per_s"] = rates.disk;
  report["device"] = DeviceJson(rates);
  const int64_t device = rates.device.ok() ? rates.device->free - kDeviceReserve : 0;
  const Advice advice = Advise(facts, {memory.usable(), std::max<int64_t>(0, device)}, rates);
  report["model"] = ModelJson(facts);
  report["advice"] = ToJson(advice);
  return report;
}

void ShowMachine(const Json& r) {
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
                   ? "not measured: give a MODEL with large files"
                   : fmt::format("{:.0f} MB/s, reads of 1 MiB past the page cache",
                                 r["disk_bytes_per_s"].get<double>() * 1e-6));
  if (!r["device"].is_null()) {
    line("gpu", fmt::format("{}: {} of {} free", r["device"]["name"].get<std::string>(),
                            size(r["device"]["free"]), size(r["device"]["total"])));
  }
  if (!r["advice"].is_null()) ShowAdvice(r);
}

}  // namespace

int DoctorMain(int argc, const char* const* argv) {
  DoctorArguments args;
  ArgParser parser(kDoctor,
                   "Says what this machine has (kernels, devices, driver, memory and its limits, "
                   "the disk's rate) and, of a model, what would be fastest here.");
  parser.AddPositional("MODEL", &args.positional,
                       "a folder with config.json (weights or not), or a GGUF file", false);
  parser.AddString("model", &args.model, "the same");
  parser.AddInt64("context", &args.context, "tokens that keys and values are held for", 1,
                  int64_t{1} << 24);
  parser.AddString("cache", &args.cache, "folder of cached packs");
  parser.AddDouble("seconds", &args.seconds, "how long each rate is measured");
  parser.AddJson(&args.json);
  parser.AddSwitch("quiet", &args.quiet, "no table, no progress");
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  if (args.model.empty()) args.model = args.positional;
  const absl::StatusOr<Json> report = Examine(args);
  if (!report.ok()) return ReportError(kDoctor, report.status());
  if (!args.quiet) ShowMachine(*report);
  if (args.json.empty()) return kExitOk;
  const absl::Status written = WriteJson(args.json, *report);
  return written.ok() ? kExitOk : ReportError(kDoctor, written);
}

}  // namespace moert::cli
