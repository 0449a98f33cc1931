#include "checkpoint/family.h"

#include <algorithm>

#include "base/errors.h"
#include "base/status_macros.h"

namespace moert {
namespace {

constexpr char kCommon[] = "common";  // what most families share

}  // namespace

absl::StatusOr<ModelFamily> ModelFamily::Load(absl::string_view name) {
  std::vector<JsonDocument> documents;
  std::string next(name);
  while (!next.empty()) {
    const size_t before = documents.size();
    for (const FamilyText& text : FamilyTexts()) {
      if (next != text.name) continue;
      MOERT_ASSIGN_OR_RETURN(JsonDocument document, JsonDocument::Parse(text.json, text.name));
      documents.push_back(std::move(document));
      break;
    }
    if (documents.size() == before || documents.size() > FamilyTexts().size()) {
      return Internal("no family is called {}, or it is like itself", next);
    }
    const auto like = documents.back().root().Find("like");
    next = like ? like->AsString().value_or("") : next == kCommon ? "" : kCommon;
  }
  return ModelFamily(std::move(documents));
}

absl::StatusOr<ModelFamily> ModelFamily::Of(absl::string_view model_type) {
  for (const FamilyText& text : FamilyTexts()) {
    MOERT_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Parse(text.json, text.name));
    const auto types = document.root().Find("model_types");
    const auto nested = types ? types->Find(model_type) : std::nullopt;
    if (!nested) continue;
    MOERT_ASSIGN_OR_RETURN(ModelFamily family, Load(text.name));
    family.nested_ = nested->AsString().value_or("");
    return family;
  }
  return absl::NotFoundError("no such family");
}

std::vector<std::string> ModelFamily::ModelTypes() {
  std::vector<std::string> names;
  for (const FamilyText& text : FamilyTexts()) {
    const auto document = JsonDocument::Parse(text.json, text.name);
    if (!document.ok() || document->root().Find("refused")) continue;
    const auto types = document->root().Find("model_types");
    if (!types) continue;
    for (const JsonMember& type : types->members()) names.push_back(*type.key.AsString());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<JsonValue> ModelFamily::Find(absl::string_view key) const {
  for (const JsonDocument& document : documents_) {
    const auto value = document.root().Find(key);
    if (value) return value->is_null() ? std::nullopt : value;
  }
  return std::nullopt;
}

std::vector<JsonValue> ModelFamily::FindAll(absl::string_view key) const {
  std::vector<JsonValue> values;
  for (const JsonDocument& document : documents_) {
    if (const auto value = document.root().Find(key)) values.push_back(*value);
  }
  return values;
}

std::string ModelFamily::Text(absl::string_view key, const std::string& def) const {
  const auto value = Find(key);
  return value ? value->AsString().value_or(def) : def;
}

double ModelFamily::Number(absl::string_view key, double def) const {
  const auto value = Find(key);
  return value ? value->AsDouble().value_or(def) : def;
}

std::vector<std::string> ModelFamily::Keys() const {
  std::vector<std::string> keys;
  for (const JsonMember& m : documents_[0].root().members()) keys.push_back(*m.key.AsString());
  return keys;
}

}  // namespace moert
