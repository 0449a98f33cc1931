// What a model needs, and how it would run fastest in so much memory.
#ifndef MOERT_EXAMPLES_CLI_RUN_ADVICE_H_
#define MOERT_EXAMPLES_CLI_RUN_ADVICE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace moert::cli {

struct ModelNeeds {
  struct As {
    std::string scheme;
    int64_t bytes = 0;        // of all routed experts
    int64_t token_bytes = 0;  // of those that one token uses
  };
  std::vector<As> schemes;  // bf16, and those that round weights only: most bits first
  int64_t host_bytes = 0;   // with a context of 4,096 tokens
  int64_t fixed_bytes = 0;  // gates, shared experts, workspace: what every budget pays first
  int64_t experts = 0;
};
absl::StatusOr<ModelNeeds> ReadModelNeeds(const std::string& model_dir);

/// Lines for people: the most precise scheme in which every expert fits `usable` bytes, else what
/// share fits, and what a miss costs at `disk_rate` bytes a second (0: unknown). Ends with a
/// command.
std::vector<std::string> Advise(const std::string& model, const ModelNeeds& needs, int64_t usable,
                                double disk_rate);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_RUN_ADVICE_H_
