// Measuring a model over calibration tokens: streaming, on several threads, resumable.
#ifndef MOERT_EXAMPLES_CLI_PACK_CALIBRATE_JOB_H_
#define MOERT_EXAMPLES_CLI_PACK_CALIBRATE_JOB_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "examples/cli/pack/sensitivity.h"

namespace moert::cli {

struct CalibrateJob {
  std::string model;
  std::string out;
  std::vector<std::string> token_files;
  int64_t tokens = 65536;  // used of those files together; 0: all
  int64_t window = 512;
  SensitivitySettings settings;
  std::string method = "gptq";
  /// Tokens, rounded up to windows, over which the end-to-end loss of every layer's errors is
  /// measured; 0: it is not.
  int64_t probe_tokens = 6144;
  int threads = 0;
  /// Where matrices are multiplied: "cpu", "cuda", or "auto", which is a device if there is one.
  std::string backend = "auto";
  /// Experts done and to do.
  std::function<void(int64_t done, int64_t total)> progress;
  /// A line for people.
  std::function<void(const std::string& line)> log;
};

/// Writes job.out. Layers that an interrupted run completed lie in `<out>.partial` and are not
/// measured again. AlreadyExists if there is a file; FailedPrecondition if another process is
/// writing it.
absl::Status RunCalibrateJob(const CalibrateJob& job);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_PACK_CALIBRATE_JOB_H_
