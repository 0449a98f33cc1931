// The common part of all reports of the tools: a description of the machine, the spread of repeated
// measurements, and writing the JSON.
#ifndef MOERT_EXAMPLES_CLI_COMMON_REPORT_H_
#define MOERT_EXAMPLES_CLI_COMMON_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace moert::cli {

/// Median and extremes of repeated measurements.
struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};

/// Zeros for an empty list.
Spread SpreadOf(std::vector<double> values);
nlohmann::json ToJson(const Spread& spread);

/// Tokens a second for people: 2570, 12.4.
std::string RateText(double tokens_per_s);

/// {"cpu", "cpus", "isa", "huge_pages", "kernel"}: model name, CPUs this process may use, CPU
/// kernel sets that run here, the system's transparent huge page setting, the operating system.
nlohmann::json DescribeMachine();

/// The command line as typed, quoted where a shell would need it.
std::string CommandLine(int argc, const char* const* argv);

/// Writes `json`, indented, to a file or ("-") to standard output.
absl::Status WriteJson(const std::string& path, const nlohmann::json& json);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_REPORT_H_
