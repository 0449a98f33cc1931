// Reading the fields of an untrusted JSON object one by one, each against its legal range.
#ifndef MOERT_LIB_MODEL_CONFIG_FIELDS_H_
#define MOERT_LIB_MODEL_CONFIG_FIELDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/json.h"
#include "moert/model.h"

namespace moert {

/// Every getter returns the field's value, or the default where the field is absent or null. The
/// first error is kept and the getters then return defaults, so a reader of many fields checks
/// status() once, before it uses any. A getter without a default requires the field.
class ConfigFields {
 public:
  /// `object` is borrowed and must be a JSON object. `source` begins every message.
  ConfigFields(JsonValue object, std::string source)
      : object_(object), source_(std::move(source)) {}

  /// Also treats the members of the object under `key`, if there is one, as fields.
  void AlsoIn(const char* key);

  const absl::Status& status() const { return status_; }
  bool Has(const char* key) const { return Find(key).has_value(); }
  /// Nothing if absent or null.
  std::optional<JsonValue> Find(const char* key) const;

  int64_t Int(const char* key, int64_t low, int64_t high, std::optional<int64_t> def = {});
  /// Finite and within [low, high].
  double Real(const char* key, double low, double high, std::optional<double> def = {});
  bool Bool(const char* key, std::optional<bool> def = {});
  std::string String(const char* key, std::optional<std::string> def = {});
  /// Each within [low, high]. Absent: empty. With `scalar_too`, one number is a list of one.
  std::vector<int64_t> Ints(const char* key, int64_t low, int64_t high, bool scalar_too = false);
  /// A list of exactly `count` numbers within [low, high].
  std::vector<double> Reals(const char* key, double low, double high, int64_t count);
  /// "silu", "gelu", ...
  Activation ActivationOf(const char* key, std::optional<std::string> def = {});

  /// Records "<source>: <key> is <value>, <what>".
  void Fail(const char* key, const std::string& what);
  /// Fails with "legal is <value>" if the field is present with another value.
  void Expect(const char* key, bool value);

  /// Members that are present, not null, and were not read by any getter.
  std::vector<std::string> Unasked() const;

 private:
  const JsonValue object_;
  std::optional<JsonValue> inner_;
  const std::string source_;
  absl::Status status_;
  mutable std::vector<std::string> asked_;
};

}  // namespace moert

#endif  // MOERT_LIB_MODEL_CONFIG_FIELDS_H_
