#include "model/config_fields.h"

#include <fmt/format.h>

#include <cmath>

namespace moert {
namespace {

using nlohmann::json;

constexpr size_t kShownBytes = 80;
constexpr size_t kMaxListLength = 65536;

std::string Show(const json* v) {
  if (v == nullptr) return "missing";
  std::string text = v->dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kShownBytes) text = text.substr(0, kShownBytes) + "...";
  return text;
}

std::optional<int64_t> AsInt(const json& v) {
  if (v.is_number_unsigned()) {
    const uint64_t u = v.get<uint64_t>();
    if (u > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(u);
  }
  if (v.is_number_integer()) return v.get<int64_t>();
  return std::nullopt;
}

}  // namespace

const json* ConfigFields::Find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void ConfigFields::Fail(const char* key, const std::string& what) {
  if (!status_.ok()) return;
  status_ = absl::InvalidArgumentError(
      fmt::format("{}: {} is {}, {}", source_, key, Show(Find(key)), what));
}

int64_t ConfigFields::Int(const char* key, int64_t low, int64_t high, std::optional<int64_t> def) {
  const json* v = Find(key);
  if (v == nullptr && def) return *def;
  const auto i = v != nullptr ? AsInt(*v) : std::nullopt;
  if (i && *i >= low && *i <= high) return *i;
  Fail(key, fmt::format("legal is an integer from {} to {}", low, high));
  return def.value_or(low);
}

double ConfigFields::Real(const char* key, double low, double high, std::optional<double> def) {
  const json* v = Find(key);
  if (v == nullptr && def) return *def;
  if (v != nullptr && v->is_number()) {
    const double d = v->get<double>();
    if (std::isfinite(d) && d >= low && d <= high) return d;
  }
  Fail(key, fmt::format("legal is a number from {} to {}", low, high));
  return def.value_or(low);
}

bool ConfigFields::Bool(const char* key, std::optional<bool> def) {
  const json* v = Find(key);
  if (v == nullptr && def) return *def;
  if (v != nullptr && v->is_boolean()) return v->get<bool>();
  Fail(key, "legal is true or false");
  return def.value_or(false);
}

std::string ConfigFields::String(const char* key, std::optional<std::string> def) {
  const json* v = Find(key);
  if (v == nullptr && def) return *def;
  if (v != nullptr && v->is_string()) return v->get<std::string>();
  Fail(key, "legal is a string");
  return def.value_or("");
}

std::vector<int64_t> ConfigFields::Ints(const char* key, int64_t low, int64_t high,
                                        bool scalar_too) {
  const json* v = Find(key);
  if (v == nullptr) return {};
  if (scalar_too && v->is_number()) return {Int(key, low, high)};
  std::vector<int64_t> values;
  bool legal = v->is_array() && v->size() <= kMaxListLength;
  if (legal) {
    for (const json& e : *v) {
      const auto i = AsInt(e);
      legal = legal && i && *i >= low && *i <= high;
      if (!legal) break;
      values.push_back(*i);
    }
  }
  if (legal) return values;
  Fail(key, fmt::format("legal is a list of at most {} integers from {} to {}", kMaxListLength, low,
                        high));
  return {};
}

std::vector<double> ConfigFields::Reals(const char* key, double low, double high, int64_t count) {
  const json* v = Find(key);
  std::vector<double> values;
  if (v != nullptr && v->is_array() && static_cast<int64_t>(v->size()) == count) {
    for (const json& e : *v) {
      if (!e.is_number()) break;
      const double d = e.get<double>();
      if (!(d >= low && d <= high)) break;
      values.push_back(d);
    }
    if (static_cast<int64_t>(values.size()) == count) return values;
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
