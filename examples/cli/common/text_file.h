#ifndef MOERT_EXAMPLES_CLI_COMMON_TEXT_FILE_H_
#define MOERT_EXAMPLES_CLI_COMMON_TEXT_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace moert::cli {

/// A whole file or pipe, for prompts. InvalidArgument above `max_bytes`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_TEXT_FILE_H_
