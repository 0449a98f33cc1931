// The fields of a config.json that a family's description points to.
#ifndef MOERT_LIB_CHECKPOINT_FAMILY_FIELDS_H_
#define MOERT_LIB_CHECKPOINT_FAMILY_FIELDS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/family.h"
#include "model/config_fields.h"
#include "moert/offline/hf_config.h"

namespace moert {

/// A description's value is a constant, or says in which field the value is:
///   "name"              this field, which has to be there
///   ["name", default]   this field, or the default
///   ["name", "other"]   this field, or the other one
///   ["", value]         a constant that is a string
///   "a|b"               the field is called a or b; where both are there, they are the same
///   "name[0]"           the first of a list; without it all of a list have to be the same
/// Errors stay in the fields.
class FamilyFields {
 public:
  FamilyFields(const ModelFamily& family, ConfigFields& fields)
      : family_(family), fields_(fields) {}

  const ModelFamily& family() const { return family_; }
  ConfigFields& fields() const { return fields_; }

  /// `fallback` where the description has no such key.
  int64_t Int(const char* key, int64_t low, int64_t high, int64_t fallback) const;
  double Real(const char* key, double low, double high, double fallback) const;
  bool Bool(const char* key, bool fallback) const;
  Activation ActivationOf(const char* key) const;
  /// The field of the config that the description's value names; empty where it names none that is
  /// there.
  std::string Present(const char* key) const;

  /// Fails, where a field of "expect" is there, unless it has the value, or one of the values, that
  /// the description says; and where one of "at_most" is larger.
  void Expect() const;
  /// Whether all fields of the object of the description have their value, or one of their values.
  /// null: it is not there.
  bool Holds(const char* key) const;

 private:
  struct Spec {
    std::vector<std::string> names;
    std::optional<JsonValue> constant;  // the value, or the default where there are names
    bool first = false;
  };
  Spec SpecOf(JsonValue value) const;
  template <typename T>
  T Read(const char* key, T fallback, const std::function<T(const char* field)>& get,
         const std::function<std::optional<T>(JsonValue)>& constant) const;

  const ModelFamily& family_;
  ConfigFields& fields_;
};

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_FAMILY_FIELDS_H_
