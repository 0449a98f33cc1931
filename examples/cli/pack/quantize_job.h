// Writing a quantized pack of a checkpoint: streaming, on several threads, resumable.
#ifndef MOERT_EXAMPLES_CLI_PACK_QUANTIZE_JOB_H_
#define MOERT_EXAMPLES_CLI_PACK_QUANTIZE_JOB_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "moert/scheme.h"

namespace moert::cli {

struct QuantizeJob {
  std::string model;
  std::string out;
  std::vector<Scheme> schemes;     // distinct, any order
  std::vector<std::string> plans;  // files of `moert-pack allocate`: a version each
  std::string method = "rtn";
  /// Weights of all schemes but bf16 are stored in the block Hadamard domain. Plans say it
  /// themselves.
  bool hadamard = false;
  /// gptq only: files of calibration tokens, and how many of them are used (0: all).
  std::vector<std::string> token_files;
  int64_t calibration_tokens = 65536;
  int64_t window = 512;
  int threads = 0;
  /// Matrices done and to do, those of layers that an earlier run completed included.
  std::function<void(int64_t done, int64_t total)> progress;
  /// A line for people.
  std::function<void(const std::string& line)> log;
};

/// "w4a16_g128,bf16": distinct schemes; the error names the one that is not.
absl::StatusOr<std::vector<Scheme>> ParseSchemes(const std::string& list);

/// Writes job.out. What an interrupted run completed is not done again.
absl::Status RunQuantizeJob(const QuantizeJob& job);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_PACK_QUANTIZE_JOB_H_
