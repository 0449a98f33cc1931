#include "cli/common/report.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "cli/common/output.h"
#include "moert/mixed_group_gemm.h"
#include "moert/tools/machine.h"

namespace moert::cli {
namespace {

std::string FirstLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

}  // namespace

Spread SpreadOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
  return {median, values.front(), values.back()};
}

nlohmann::json ToJson(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

std::string RateText(double tokens_per_s) {
  return tokens_per_s >= 100 ? fmt::format("{:.0f}", tokens_per_s)
                             : fmt::format("{:.3g}", tokens_per_s);
}

nlohmann::json DescribeMachine() {
  utsname system = {};
  uname(&system);
  return {{"cpu", CpuModel()},
          {"cpus", ReadCpuLimits().usable()},
          {"isa", MixedGroupGemm::KernelNames()},
          {"huge_pages", FirstLine("/sys/kernel/mm/transparent_hugepage/enabled")},
          {"kernel", fmt::format("{} {}", system.sysname, system.release)}};
}

std::string CommandLine(int argc, const char* const* argv) {
  std::string out;
  for (int i = 0; i < argc; ++i) {
    const std::string arg = argv[i];
    const bool plain =
        !arg.empty() && arg.find_first_of(" \t\n'\"\\$`*?[]{}()<>|&;#~!") == std::string::npos;
    if (i > 0) out += ' ';
    if (plain) {
      out += arg;
      continue;
    }
    out += '\'';
    for (const char c : arg) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    out += '\'';
  }
  return out;
}

absl::Status WriteJson(const std::string& path, const nlohmann::json& json) {
  // Doubles print as the shortest text that reads back exactly; odd bytes in strings are replaced.
  const std::string text =
      json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return WriteOutput(path, text);
}

}  // namespace moert::cli
