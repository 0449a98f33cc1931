#include "moert/offline/plan.h"

#include <fmt/format.h>

#include <new>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/status_macros.h"
#include "model/config_fields.h"
#include "model/model_json.h"
#include "pack/version_json.h"

namespace moert {
namespace {

using nlohmann::json;

constexpr char kFormatName[] = "moert plan";

absl::Status Error(const std::string& source, const std::string& what) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", source, what));
}

absl::StatusOr<Plan> Parse(const json& object, const std::string& source) {
  ConfigFields f(object, source);
  if (f.String("format") != kFormatName) return Error(source, "is no plan");
  const int64_t version = f.Int("format_version", 0, INT32_MAX);
  MOERT_RETURN_IF_ERROR(f.status());
  if (version != kPlanFormatVersion) {
    return Error(source, fmt::format("has format version {}, this build reads {}", version,
                                     kPlanFormatVersion));
  }
  const json* model = f.Find("model");
  const json* assigned = f.Find("version");
  if (model == nullptr || assigned == nullptr) {
    return Error(source, "model and version must be there");
  }
  Plan plan;
  plan.source_identity = f.String("source_identity");
  MOERT_RETURN_IF_ERROR(f.status());
  MOERT_ASSIGN_OR_RETURN(plan.model, ModelFromJson(*model, source + ": model"));
  MOERT_ASSIGN_OR_RETURN(plan.version,
                         VersionFromJson(*assigned, plan.model, source + ": version"));
  const json* summary = f.Find("summary");
  if (summary != nullptr && summary->is_object()) plan.summary_json = summary->dump();
  return plan;
}

}  // namespace

std::string PlanToJson(const Plan& plan) {
  json summary = json::parse(plan.summary_json, nullptr, false);
  if (!summary.is_object()) summary = json::object();
  const auto text = [](const json& value) {
    return value.dump(-1, ' ', true, json::error_handler_t::replace);
  };
  const json version = VersionToJson(plan.version);
  std::string out = fmt::format(
      "{{\n\"format\": \"{}\",\n\"format_version\": {},\n\"source_identity\": {},\n"
      "\"summary\": {},\n\"model\": {},\n\"version\": {{\n\"name\": {},\n\"formats\": [",
      kFormatName, kPlanFormatVersion, text(plan.source_identity), summary.dump(1),
      text(ModelToJson(plan.model)), text(version["name"]));
  const char* separator = "\n ";
  for (const json& format : version["formats"]) {
    out += separator + text(format);
    separator = ",\n ";
  }
  out += "]";
  if (version.contains("assignment")) {
    out += ",\n\"assignment\": [";
    separator = "\n ";
    for (const json& layer : version["assignment"]) {
      out += separator + text(layer);
      separator = ",\n ";
    }
    out += "]";
  }
  return out + "}\n}\n";
}

absl::StatusOr<Plan> ReadPlan(const std::string& path, Env* env) {
  MOERT_ASSIGN_OR_RETURN(const json object, ReadJsonFile(env, path));
  try {
    return Parse(object, path);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(path + ": out of memory");
  } catch (const std::exception& e) {
    return Error(path, e.what());
  }
}

}  // namespace moert
