// JSON files that contain their own checksum: a flipped bit anywhere is found.
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

/// Adds a member `checksum` to `object` (the text of a JsonWriter): the checksum of all other
/// members without spaces. It is placed before the first member with a greater key.
std::string SealedText(const std::string& object);
/// DataLoss if the document has changed since; InvalidArgument if it has no checksum. `source`
/// begins the messages.
absl::Status CheckSeal(const JsonDocument& document, const std::string& source);

}  // namespace moert

#endif  // MOERT_LIB_PACK_SEALED_JSON_H_
