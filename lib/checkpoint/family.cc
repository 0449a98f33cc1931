#include "checkpoint/family.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
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

namespace {

bool Same(JsonValue field, JsonValue legal) {
  if (field.is_array()) {  // each of them
    for (const JsonValue e : field.elements()) {
      if (!Same(e, legal)) return false;
    }
    return true;
  }
  if (legal.is_object()) {
    for (const JsonMember& m : legal.members()) {
      const auto member = field.Find(*m.key.AsString());
      if (!member || !Same(*member, m.value)) return false;
    }
    return true;
  }
  if (field.is_number() && legal.is_number()) return field.AsDouble() == legal.AsDouble();
  if (field.is_bool() && legal.is_bool()) return field.AsBool() == legal.AsBool();
  return field.is_string() && legal.is_string() && field.AsString() == legal.AsString();
}

bool IsOneOf(std::optional<JsonValue> field, JsonValue legal) {
  const auto is = [&](JsonValue one) {
    return field ? !one.is_null() && Same(*field, one) : one.is_null();
  };
  if (!legal.is_array()) return is(legal);
  for (const JsonValue e : legal.elements()) {
    if (is(e)) return true;
  }
  return false;
}

std::string Unquoted(JsonValue v) { return v.is_string() ? *v.AsString() : std::string(v.text()); }

std::string Legal(JsonValue legal) {
  if (legal.is_null()) return "legal is to leave it out";
  if (!legal.is_array()) return "legal is " + Unquoted(legal);
  std::vector<std::string> all;
  for (const JsonValue e : legal.elements()) all.push_back(Unquoted(e));
  return fmt::format("legal are {}", fmt::join(all, ", "));
}

}  // namespace

FamilyFields::Spec FamilyFields::SpecOf(JsonValue value) const {
  Spec spec;
  std::optional<std::string> names = value.AsString();
  if (value.is_array()) {
    auto element = value.elements().begin();
    names = (*element).AsString();
    ++element;
    spec.constant = *element;
  } else if (!names) {
    spec.constant = value;
  }
  if (!names || names->empty()) return spec;
  absl::string_view text = *names;
  spec.first = absl::ConsumeSuffix(&text, "[0]");
  spec.names = absl::StrSplit(text, '|');
  return spec;
}

template <typename T>
T FamilyFields::Read(const char* key, T fallback, const std::function<T(const char*)>& get,
                     const std::function<std::optional<T>(JsonValue)>& constant) const {
  const auto described = family_.Find(key);
  if (!described) return fallback;
  const Spec spec = SpecOf(*described);
  std::optional<T> value;
  for (const std::string& name : spec.names) {
    if (!fields_.Has(name.c_str())) continue;
    const T found = get(name.c_str());
    if (value && !(*value == found)) {
      fields_.Fail(name.c_str(), fmt::format("legal is what {} is", spec.names[0]));
    }
    value = value.value_or(found);
  }
  if (value) return *value;
  if (spec.constant) return constant(*spec.constant).value_or(fallback);
  return get(spec.names.back().c_str());  // which says that it is missing
}

int64_t FamilyFields::Int(const char* key, int64_t low, int64_t high, int64_t fallback) const {
  const auto described = family_.Find(key);
  const bool first = described && SpecOf(*described).first;
  const auto get = [&](const char* field) -> int64_t {
    if (const auto v = fields_.Find(field); !v || !v->is_array())
      return fields_.Int(field, low, high);
    const std::vector<int64_t> values = fields_.Ints(field, low, high);
    if (!values.empty() && (first || std::count(values.begin(), values.end(), values[0]) ==
                                         static_cast<int64_t>(values.size()))) {
      return values[0];
    }
    fields_.Fail(field, "legal is one number for all layers");
    return low;
  };
  return Read<int64_t>(key, fallback, get, [&](JsonValue v) {
    return v.is_string() ? std::optional<int64_t>(get(v.AsString()->c_str())) : v.AsInt();
  });
}

double FamilyFields::Real(const char* key, double low, double high, double fallback) const {
  return Read<double>(
      key, fallback, [&](const char* field) { return fields_.Real(field, low, high); },
      [](JsonValue v) { return v.AsDouble(); });
}

bool FamilyFields::Bool(const char* key, bool fallback) const {
  return Read<bool>(
      key, fallback, [&](const char* field) { return fields_.Bool(field); },
      [](JsonValue v) { return std::optional<bool>(v.AsBool()); });
}

Activation FamilyFields::ActivationOf(const char* key) const {
  if (!family_.Find(key)) return fields_.ActivationOf("hidden_act", "silu");
  return Read<Activation>(
      key, Activation::kSilu, [&](const char* field) { return fields_.ActivationOf(field); },
      [](JsonValue v) {
        return std::optional<Activation>(v.Is("relu2") ? Activation::kRelu2 : Activation::kSilu);
      });
}

std::string FamilyFields::Present(const char* key) const {
  const auto described = family_.Find(key);
  if (!described) return "";
  for (const std::string& name : SpecOf(*described).names) {
    if (fields_.Has(name.c_str())) return name;
  }
  return "";
}

void FamilyFields::Expect() const {
  std::vector<std::string> own;  // what the family says itself goes before what it is like
  for (const JsonValue object : family_.FindAll("expect")) {
    for (const JsonMember& m : object.members()) {
      const std::string name = *m.key.AsString();
      if (std::find(own.begin(), own.end(), name) != own.end()) continue;
      own.push_back(name);
      const auto field = fields_.Find(name.c_str());
      if (field && !IsOneOf(field, m.value)) fields_.Fail(name.c_str(), Legal(m.value));
    }
  }
  const auto bounds = family_.Find("at_most");
  if (!bounds) return;
  for (const JsonMember& m : bounds->members()) {
    fields_.Real(m.key.AsString()->c_str(), 0, m.value.AsDouble().value_or(0), 0);
  }
}

bool FamilyFields::Holds(const char* key) const {
  const auto object = family_.Find(key);
  if (!object) return true;
  bool holds = true;
  for (const JsonMember& m : object->members()) {  // all of them are asked for
    const auto field = fields_.Find(m.key.AsString()->c_str());
    holds = IsOneOf(field, m.value) && holds;
  }
  return holds;
}

}  // namespace moert
