// The flag --promise of tools that open engines.
#ifndef MOERT_EXAMPLES_CLI_COMMON_PROMISE_FLAG_H_
#define MOERT_EXAMPLES_CLI_COMMON_PROMISE_FLAG_H_

#include <string>

#include "absl/status/status.h"
#include "cli/common/args.h"
#include "moert/options.h"
#include "util/status_macros.h"

namespace moert::cli {

inline void AddPromise(ArgParser* parser, std::string* promise) {
  parser->AddString(
      "promise", promise,
      "weakest promise accepted: exact (the same bits at any budget), faithful (a CPU "
      "may compute beside a GPU) or lossy; without it the strategy's own");
  parser->Suggest("promise", {"exact", "faithful", "lossy"});
}

/// Empty: the strategy's own.
inline absl::Status SetPromise(const std::string& name, EngineOptions* options) {
  if (name.empty()) return absl::OkStatus();
  MOERT_ASSIGN_OR_RETURN(options->promise, ParsePromise(name));
  return absl::OkStatus();
}

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_PROMISE_FLAG_H_
