// JSON files with a checksum of themselves: a flipped bit anywhere is found.
#ifndef MOERT_LIB_PACK_SEALED_JSON_H_
#define MOERT_LIB_PACK_SEALED_JSON_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/json.h"

namespace moert {

/// 16 hex digits.
std::string HexOf(uint64_t value);
std::optional<uint64_t> ParseHex(JsonValue value);

/// `object`, the text of a JsonWriter, with a member `checksum`: of the text of all other members,
/// without spaces. Its place is in front of the first member with a greater key.
std::string SealedText(const std::string& object);
/// DataLoss if the document has changed since; InvalidArgument if it has no checksum. `source`
/// begins the messages.
absl::Status CheckSeal(const JsonDocument& document, const std::string& source);

}  // namespace moert

#endif  // MOERT_LIB_PACK_SEALED_JSON_H_
