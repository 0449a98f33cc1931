// Token files: the format of calibration and evaluation texts. Token ids one after the other,
// little-endian, no header: uint32 in a file whose name ends with ".u32", uint16 in every other.
#ifndef MOERT_OFFLINE_TOKEN_FILE_H_
#define MOERT_OFFLINE_TOKEN_FILE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace moert {

/// The first `limit` ids of a regular file or pipe (0: all, at most 4 GiB). Errors name the file,
/// and of an id outside 0..vocab_size - 1 its index too.
absl::StatusOr<std::vector<int32_t>> ReadTokenFile(const std::string& path, int64_t vocab_size,
                                                   int64_t limit = 0);

/// Replaces ReadTokenFile as a job's reader of token "files": the host's tokenizer may encode a
/// text, for example. It returns the same errors.
using TokenReader = std::function<absl::StatusOr<std::vector<int32_t>>(const std::string& path,
                                                                       int64_t vocab_size)>;

}  // namespace moert

#endif  // MOERT_OFFLINE_TOKEN_FILE_H_
