// The flags of moert-run that generate and ppl share.
#ifndef MOERT_EXAMPLES_CLI_RUN_RUN_OPTIONS_H_
#define MOERT_EXAMPLES_CLI_RUN_RUN_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/common/args.h"
#include "moert/options.h"

namespace moert::cli {

struct RunOptions {
  std::string model;
  std::string experts;
  std::string as;  // schemes to open the checkpoint's experts in
  bool pack = false;
  bool live = false;
  std::string warm = "off";
  std::string strategy = "auto";
  std::string promise;  // empty: as the strategy says
  std::string budget = "100%";
  std::string host_budget;
  std::string backend = "auto";
  int threads = 0;
  double link_gbps = 0.0;
  std::string clock = "wall";
  std::string profile = "reference";
  std::string cache;
  int64_t seed = 0;
  std::string dtype = "bf16";
  std::string kernels = "auto";
  std::string graphs = "auto";
  std::string json;
  std::string trace;
  bool quiet = false;

  /// Only the JSON object may go to stdout.
  bool json_alone() const { return quiet && json == "-"; }
};

/// Registers them with `parser`; `options` is borrowed until it has parsed.
void AddRunFlags(ArgParser* parser, RunOptions* options);

/// Tokens of a prompt that one step takes at most.
int64_t MaxPrefillRows(const RunOptions& options);

/// The engine's options: everything but host_budget, and the sizes of steps.
absl::StatusOr<EngineOptions> MakeEngineOptions(const RunOptions& options);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_RUN_RUN_OPTIONS_H_
