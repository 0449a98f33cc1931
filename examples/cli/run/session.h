// A model opened for one command: its dense parts, its experts behind an engine, and the decoder.
#ifndef MOERT_EXAMPLES_CLI_RUN_SESSION_H_
#define MOERT_EXAMPLES_CLI_RUN_SESSION_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "cli/common/run_report.h"
#include "cli/run/run_options.h"
#include "cli/run/warm.h"
#include "host/token_model.h"
#include "moert/engine.h"
#include "moert/offline/hf_config.h"
#include "moert/thread_pool.h"
#include "moert/tools/warm_start.h"

namespace moert::cli {

struct Session {
  HfConfig config;
  std::unique_ptr<ThreadPool> pool;
  std::shared_ptr<TraceFile> trace;  // null without --trace
  std::shared_ptr<UseCounter> uses;  // null where nothing is counted
  std::string uses_path;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<WarmStart> warm;  // null where nothing is filled
  std::unique_ptr<host::TokenModel> decoder;

  /// `config` is the model's. Notes and progress go to stderr, as `options` allows. `max_rows`:
  /// tokens of the largest step; the engine's workspace is sized from it. Where prompts have more
  /// tokens (`prompt`; 0: no prompts) and wait for experts, steps get more rows on the CPU.
  static absl::StatusOr<Session> Open(const RunOptions& options, HfConfig config, int64_t max_rows,
                                      int64_t prompt = 0);

  /// Whether the fast tier is still being filled: steps until then are counted apart.
  bool filling() const { return warm != nullptr && warm->stats().filling; }
  /// Completes the trace, then prints and writes the report as the options say.
  absl::Status Finish(RunReport report, const RunOptions& options);
};

/// The exit status of an error before the first step: wrong input by the user, unless the machine
/// or the library is at fault.
int SetupExitStatus(const absl::Status& status);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_RUN_SESSION_H_
