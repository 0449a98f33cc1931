// A PackVersion as JSON, for moert.json and plans.
#ifndef MOERT_LIB_PACK_VERSION_JSON_H_
#define MOERT_LIB_PACK_VERSION_JSON_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "pack/pack_manifest.h"

namespace moert {

nlohmann::json VersionToJson(const PackVersion& version);

/// Names, formats and one legal index an expert of `model`. `source` begins the messages.
absl::StatusOr<PackVersion> VersionFromJson(const nlohmann::json& object, const MoeModelSpec& model,
                                            const std::string& source);

}  // namespace moert

#endif  // MOERT_LIB_PACK_VERSION_JSON_H_
