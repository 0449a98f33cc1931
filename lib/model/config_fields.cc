#include "model/config_fields.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.h"
#include "base/json_scan.h"
#include "base/printable.h"

namespace moert {
namespace {

constexpr size_t kShownBytes = 80;
constexpr size_t kMaxListLength = 65536;

// Without the spaces and line ends between tokens.
std::string Show(const std::optional<JsonValue>& v) {
  if (!v) return "missing";
  const absl::string_view text = v->text();
  std::string shown;
  bool quoted = false;
  for (size_t i = 0; i < text.size() && shown.size() <= kShownBytes; ++i) {
    if (text[i] == '"' && (i == 0 || text[i - 1] != '\\')) quoted = !quoted;
    if (quoted || !json_scan::IsSpace(text[i])) shown += text[i];
  }
  return Printable(shown, kShownBytes);
}

}  // namespace

std::optional<JsonValue> ConfigFields::Find(const char* key) const {
  if (std::find(asked_.begin(), asked_.end(), key) == asked_.end()) asked_.emplace_back(key);
  std::optional<JsonValue> v = object_.Find(key);
  if (!v && inner_) v = inner_->Find(key);
  return v && v->is_null() ? std::nullopt : v;
}

void ConfigFields::AlsoIn(const char* key) {
  inner_ = Find(key);
  if (inner_ && !inner_->is_object()) Fail(key, "legal is an object");
}

void ConfigFields::Fail(const char* key, const std::string& what) {
  if (!status_.ok()) return;
  status_ = InvalidArgument("{}: {} is {}, {}", source_, key, Show(Find(key)), what);
}

void ConfigFields::Expect(const char* key, bool value) {
  if (Bool(key, value) != value) Fail(key, value ? "legal is true" : "legal is false");
}

std::vector<std::string> ConfigFields::Unasked() const {
  std::vector<std::string> unasked;
  for (const JsonValue object : {object_, inner_.value_or(object_)}) {
    for (const JsonMember& member : object.members()) {
      std::string key = *member.key.AsString();
      if (member.value.is_null()) continue;
      if (std::find(asked_.begin(), asked_.end(), key) != asked_.end()) continue;
      if (std::find(unasked.begin(), unasked.end(), key) == unasked.end()) unasked.push_back(key);
    }
  }
  return unasked;
}

int64_t ConfigFields::Int(const char* key, int64_t low, int64_t high, std::optional<int64_t> def) {
  const auto v = Find(key);
  if (!v && def) return *def;
  const auto i = v ? v->AsInt() : std::nullopt;
  if (i && *i >= low && *i <= high) return *i;
  Fail(key, fmt::format("legal is an integer from {} to {}", low, high));
  return def.value_or(low);
}

double ConfigFields::Real(const char* key, double low, double high, std::optional<double> def) {
  const auto v = Find(key);
  if (!v && def) return *def;
  const auto d = v ? v->AsDouble() : std::nullopt;
  if (d && *d >= low && *d <= high) return *d;
  Fail(key, fmt::format("legal is a number from {} to {}", low, high));
  return def.value_or(low);
}

bool ConfigFields::Bool(const char* key, std::optional<bool> def) {
  const auto v = Find(key);
  if (!v && def) return *def;
  if (v && v->is_bool()) return v->AsBool();
  Fail(key, "legal is true or false");
  return def.value_or(false);
}

std::string ConfigFields::String(const char* key, std::optional<std::string> def) {
  const auto v = Find(key);
  if (!v && def) return *def;
  if (v && v->is_string()) return *v->AsString();
  Fail(key, "legal is a string");
  return def.value_or("");
}

std::vector<int64_t> ConfigFields::Ints(const char* key, int64_t low, int64_t high,
                                        bool scalar_too) {
  const auto v = Find(key);
  if (!v) return {};
  if (scalar_too && v->is_number()) return {Int(key, low, high)};
  std::vector<int64_t> values;
  bool legal = v->is_array();
  values.reserve(std::min(v->size(), kMaxListLength));
  for (const JsonValue e : v->elements()) {
    const auto i = e.AsInt();
    legal = i && *i >= low && *i <= high && values.size() < kMaxListLength;
    if (!legal) break;
    values.push_back(*i);
  }
  if (legal) return values;
  Fail(key, fmt::format("legal is a list of at most {} integers from {} to {}", kMaxListLength, low,
                        high));
  return {};
}

std::vector<double> ConfigFields::Reals(const char* key, double low, double high, int64_t count) {
  const auto v = Find(key);
  std::vector<double> values;
  if (v && static_cast<int64_t>(v->size()) == count) {
    values.reserve(count);
    for (const JsonValue e : v->elements()) {
      const auto d = e.AsDouble();
      if (!d || !(*d >= low && *d <= high)) break;
      values.push_back(*d);
    }
    if (v->is_array() && static_cast<int64_t>(values.size()) == count) return values;
  }
  Fail(key, fmt::format("legal is a list of {} numbers from {} to {}", count, low, high));
  return {};
}

Activation ConfigFields::ActivationOf(const char* key, std::optional<std::string> def) {
  const std::string name = String(key, std::move(def));
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  Fail(key, "legal are silu, swish, gelu, gelu_new, gelu_pytorch_tanh");
  return Activation::kSilu;
}

}  // namespace moert
