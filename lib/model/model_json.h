// A MoeModelSpec as JSON, for moert.json.
#ifndef MOERT_LIB_MODEL_MODEL_JSON_H_
#define MOERT_LIB_MODEL_MODEL_JSON_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "moert/model.h"

namespace moert {

nlohmann::json ModelToJson(const MoeModelSpec& model);

/// Every field checked, then the whole with MoeModelSpec::Validate. `source` begins the messages.
absl::StatusOr<MoeModelSpec> ModelFromJson(const nlohmann::json& object, const std::string& source);

}  // namespace moert

#endif  // MOERT_LIB_MODEL_MODEL_JSON_H_
