// JSON files that end with a checksum of themselves: a flipped bit anywhere is found.
#ifndef MOERT_LIB_PACK_SEALED_JSON_H_
#define MOERT_LIB_PACK_SEALED_JSON_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace moert {

/// 16 hex digits.
std::string HexOf(uint64_t value);
std::optional<uint64_t> ParseHex(const nlohmann::json& value);

/// The text of `doc` with a field `checksum`: of the text of all other fields, keys sorted, without
/// spaces.
std::string SealedText(nlohmann::json doc);
/// DataLoss if `doc` has changed since; InvalidArgument if it has no checksum. `source` begins the
/// messages.
absl::Status CheckSeal(nlohmann::json doc, const std::string& source);

}  // namespace moert

#endif  // MOERT_LIB_PACK_SEALED_JSON_H_
