// JSON from untrusted files: bounded size, depth and number of values, strict UTF-8, no duplicate
// keys, no exceptions.
#ifndef MOERT_EXAMPLES_UTIL_JSON_H_
#define MOERT_EXAMPLES_UTIL_JSON_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moert::util {

struct JsonLimits {
  int64_t max_bytes = 100'000'000;
  int max_depth = 32;
  int64_t max_values = 2'000'000;  // keys are not counted; about 100 bytes of memory each
};

/// `source` (a path) begins every error message. The top level must be an object.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, const std::string& source,
                                               const JsonLimits& limits = {});

}  // namespace moert::util

#endif  // MOERT_EXAMPLES_UTIL_JSON_H_
