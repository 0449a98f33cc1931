// A MoeModelSpec as JSON, for moert.json.
#ifndef MOERT_LIB_MODEL_MODEL_JSON_H_
#define MOERT_LIB_MODEL_MODEL_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "moert/model.h"

namespace moert {

/// Every kind, in the order of the enumeration.
inline constexpr RoutingKind kRoutingKinds[] = {
    RoutingKind::kSoftmaxTopK, RoutingKind::kTopKSoftmax,         RoutingKind::kSigmoidGrouped,
    RoutingKind::kSparseMixer, RoutingKind::kSqrtSoftplusGrouped, RoutingKind::kTopKSigmoid,
    RoutingKind::kExternal};

void WriteModel(const MoeModelSpec& model, JsonWriter* out);

/// Every field checked, then the whole with MoeModelSpec::Validate. `source` begins the messages.
absl::StatusOr<MoeModelSpec> ModelFromJson(JsonValue object, const std::string& source);

}  // namespace moert

#endif  // MOERT_LIB_MODEL_MODEL_JSON_H_
