// The report of a run: the JSON object users script against, and the table people read.
#ifndef MOERT_EXAMPLES_CLI_COMMON_RUN_REPORT_H_
#define MOERT_EXAMPLES_CLI_COMMON_RUN_REPORT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "moert/engine.h"

namespace moert::cli {

struct RunReport {
  std::string command;
  std::string model;  // valid UTF-8
  std::string backend = "cpu";
  std::optional<int64_t> seed;  // of sampling; absent: nothing is drawn
  bool virtual_clock = false;
  std::optional<double> nll, ppl;  // ppl only
  int64_t tokens_scored = 0;
  std::vector<double> window_nll;   // ppl only: mean over each window's scored tokens
  std::optional<std::string> text;  // generate only, valid UTF-8
  std::vector<int32_t> tokens;      // generate only: what was generated
  std::optional<double> ttft_ms;    // generate only
  std::vector<double> decode_ms;    // by decode step
  /// Tokens of all sequences together in one decode step, the mean.
  double step_tokens = 1;
  std::optional<double> prompt_tokens_per_s;
  std::optional<EngineStats> stats;  // of a part of the run; absent: all of it
  nlohmann::ordered_json extra;      // further keys of the object; null: none
};

/// The object as text, one line, doubles so that they read back exactly.
std::string ReportJson(const RunReport& report, const Engine& engine);

/// A small table for people.
std::string ReportTable(const RunReport& report, const Engine& engine);

/// Prints the table unless quiet, and writes the JSON to a file, or to stdout where `json` is "-".
absl::Status WriteReport(const RunReport& report, const Engine& engine, const std::string& json,
                         bool quiet);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_RUN_REPORT_H_
