// What a run reports: the JSON object users script against, and the table people read.
#ifndef MOERT_EXAMPLES_CLI_RUN_REPORT_H_
#define MOERT_EXAMPLES_CLI_RUN_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "examples/cli/run/run_options.h"
#include "moert/engine.h"

namespace moert::cli {

struct RunReport {
  std::string command;
  std::optional<double> nll, ppl;  // ppl only
  int64_t tokens_scored = 0;
  std::optional<std::string> text;  // generate only, valid UTF-8
  std::vector<int32_t> tokens;      // generate only: what was generated
  std::optional<double> ttft_ms;    // generate only
  std::vector<double> decode_ms;    // by decode step
};

/// The object as text, one line, doubles so that they read back exactly.
std::string ReportJson(const RunReport& report, const RunOptions& options, const Engine& engine);

/// A small table for people.
std::string ReportTable(const RunReport& report, const RunOptions& options, const Engine& engine);

/// Prints the table unless quiet, and writes the JSON where --json says.
absl::Status WriteReport(const RunReport& report, const RunOptions& options, const Engine& engine);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_RUN_REPORT_H_
