// Token files: raw little-endian uint16 ids.
#ifndef MOERT_EXAMPLES_CLI_COMMON_TOKEN_FILE_H_
#define MOERT_EXAMPLES_CLI_COMMON_TOKEN_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace moert::cli {

/// All ids of `path`, or its first `limit` if limit > 0. Errors name the file, and the index, value
/// and range of an id that `vocab_size` does not allow.
absl::StatusOr<std::vector<int32_t>> ReadTokenFile(const std::string& path, int64_t vocab_size,
                                                   int64_t limit);

/// A whole file, for prompts. InvalidArgument above `max_bytes`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_TOKEN_FILE_H_
