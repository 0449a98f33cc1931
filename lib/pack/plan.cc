#include "moert/offline/plan.h"

#include <fmt/format.h>

#include <new>

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/status_macros.h"
#include "model/config_fields.h"
#include "model/model_json.h"
#include "pack/pack_manifest.h"

namespace moert {
namespace {

constexpr char kFormatName[] = "moert plan";

absl::Status Error(const std::string& source, const std::string& what) {
  return InvalidArgument("{}: {}", source, what);
}

absl::StatusOr<Plan> Parse(JsonValue object, const std::string& source) {
  ConfigFields f(object, source);
  if (f.String("format") != kFormatName) return Error(source, "is no plan");
  const int64_t version = f.Int("format_version", 0, INT32_MAX);
  MOERT_RETURN_IF_ERROR(f.status());
  if (version != kPlanFormatVersion) {
    return Error(source, fmt::format("has format version {}, this build reads {}", version,
                                     kPlanFormatVersion));
  }
  const auto model = f.Find("model");
  const auto assigned = f.Find("version");
  if (!model || !assigned) return Error(source, "model and version must be there");
  Plan plan;
  plan.source_identity = f.String("source_identity");
  MOERT_RETURN_IF_ERROR(f.status());
  MOERT_ASSIGN_OR_RETURN(plan.model, ModelFromJson(*model, source + ": model"));
  MOERT_ASSIGN_OR_RETURN(plan.version,
                         VersionFromJson(*assigned, plan.model, source + ": version"));
  const auto summary = f.Find("summary");
  if (summary && summary->is_object()) plan.summary_json = JsonWriter().Copy(*summary).Take();
  return plan;
}

// Formats an object with one line per field and per element of its lists, because people compare
// plans.
std::string Lines(const std::string& object) {
  const auto document = JsonDocument::Parse(object, "version");
  if (!document.ok()) return object;
  const auto text = [](JsonValue v) { return std::string(v.text()); };
  std::string out = "{";
  for (const JsonMember& m : document->root().members()) {
    out += (out.size() > 1 ? ",\n" : "\n") + text(m.key) + ": ";
    if (!m.value.is_array()) {
      out += text(m.value);
      continue;
    }
    const char* separator = "[\n ";
    for (const JsonValue element : m.value.elements()) {
      out += separator + text(element);
      separator = ",\n ";
    }
    out += "]";
  }
  return out + "\n}";
}

}  // namespace

std::string PlanToJson(const Plan& plan) {
  const auto summary = JsonDocument::Parse(plan.summary_json, "summary");
  JsonWriter model;
  WriteModel(plan.model, &model);
  std::string out = fmt::format(
      "{{\n\"format\": \"{}\",\n\"format_version\": {},\n\"source_identity\": {},\n\"summary\": "
      "{},\n\"model\": {},\n\"version\": ",
      kFormatName, kPlanFormatVersion, JsonWriter().String(plan.source_identity).Take(),
      summary.ok() ? JsonWriter().Copy(summary->root()).Take() : "{}", model.Take());
  JsonWriter version;
  WriteVersion(plan.version, &version);
  return out + Lines(version.Take()) + "\n}\n";
}

absl::StatusOr<Plan> ReadPlan(const std::string& path, Env* env) try {
  MOERT_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Read(env, path));
  try {
    return Parse(document.root(), path);
  } catch (const std::bad_alloc&) {
    return OutOfMemory(path);
  }
} catch (...) {
  return ExceptionStatus("reading a plan");
}

}  // namespace moert
