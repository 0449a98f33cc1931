// Reads tokens from a file of ids or from a text.
#ifndef MOERT_EXAMPLES_HOST_READ_TOKENS_H_
#define MOERT_EXAMPLES_HOST_READ_TOKENS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace moert::host {

/// FILE.u16 and FILE.u32 hold ids (moert/offline/token_file.h). Any other file is text, UTF-8
/// without zero bytes, which the tokenizer of the model in `model_dir` encodes as a prompt. Returns
/// the first `limit` tokens; 0: all. Errors name the file.
absl::StatusOr<std::vector<int32_t>> ReadTokens(const std::string& path,
                                                const std::string& model_dir, int64_t vocab_size,
                                                int64_t limit);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_READ_TOKENS_H_
