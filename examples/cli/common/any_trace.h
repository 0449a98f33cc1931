// Traces by path, whatever recorded them.
#ifndef MOERT_EXAMPLES_CLI_COMMON_ANY_TRACE_H_
#define MOERT_EXAMPLES_CLI_COMMON_ANY_TRACE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "moert/tools/trace.h"

namespace moert::cli {

/// Opens a routing trace, or recorded routing (*.safetensors), which needs the model it was
/// recorded from: `model_dir`, a checkpoint whose experts are taken as bf16.
absl::StatusOr<std::unique_ptr<TraceReader>> OpenAnyTrace(const std::string& path,
                                                          const std::string& model_dir);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_ANY_TRACE_H_
