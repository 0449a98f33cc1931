// Token files: what calibration and evaluation texts are stored as. Token ids one behind the other,
// little-endian uint16, no header.
#ifndef MOERT_OFFLINE_TOKEN_FILE_H_
#define MOERT_OFFLINE_TOKEN_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace moert {

/// The first `limit` ids of a regular file or pipe (0: all, at most 2 Gi). Errors name the file,
/// and of an id outside 0..vocab_size - 1 its index too.
absl::StatusOr<std::vector<int32_t>> ReadTokenFile(const std::string& path, int64_t vocab_size,
                                                   int64_t limit = 0);

}  // namespace moert

#endif  // MOERT_OFFLINE_TOKEN_FILE_H_
