// A PackVersion as JSON, for moert.json and plans.
#ifndef MOERT_LIB_PACK_VERSION_JSON_H_
#define MOERT_LIB_PACK_VERSION_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "pack/pack_manifest.h"

namespace moert {

void WriteVersion(const PackVersion& version, JsonWriter* out);

/// Names, formats and one legal index an expert of `model`. `source` begins the messages.
absl::StatusOr<PackVersion> VersionFromJson(JsonValue object, const MoeModelSpec& model,
                                            const std::string& source);

}  // namespace moert

#endif  // MOERT_LIB_PACK_VERSION_JSON_H_
