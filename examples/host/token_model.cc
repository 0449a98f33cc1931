#include "host/token_model.h"

#include <fmt/format.h>

namespace moert::host {

absl::Status CheckInputs(const HfConfig& config, absl::Span<const SequenceInput> inputs,
                         int64_t max_rows) {
  int64_t rows = 0;
  for (const SequenceInput& input : inputs) {
    const int64_t length = input.cache->length(), added = static_cast<int64_t>(input.tokens.size());
    rows += added;
    if (length + added > input.cache->capacity()) {
      return absl::InvalidArgumentError(fmt::format("a sequence of {} tokens; its cache holds {}",
                                                    length + added, input.cache->capacity()));
    }
    for (const int32_t token : input.tokens) {
      if (token < 0 || token >= config.vocab_size) {
        return absl::InvalidArgumentError(
            fmt::format("token id {} is not in 0..{}", token, config.vocab_size - 1));
      }
    }
  }
  if (rows < 1 || rows > max_rows) {
    return absl::InvalidArgumentError(
        fmt::format("a step of {} tokens; allowed are 1..{}", rows, max_rows));
  }
  return absl::OkStatus();
}

}  // namespace moert::host
