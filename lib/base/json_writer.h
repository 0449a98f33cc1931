// Writes JSON text incrementally: ASCII, without spaces, commas added automatically. Members come
// in the order of the calls; the formats of this library list them sorted.
#ifndef MOERT_LIB_BASE_JSON_WRITER_H_
#define MOERT_LIB_BASE_JSON_WRITER_H_

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/json.h"

namespace moert {

class JsonWriter {
 public:
  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }
  JsonWriter& Key(absl::string_view key);

  /// Bytes that are not UTF-8 become U+FFFD.
  JsonWriter& String(absl::string_view value);
  JsonWriter& Int(int64_t value);
  /// The shortest text that reads back exactly; null if not finite.
  JsonWriter& Double(double value);
  JsonWriter& Bool(bool value);
  /// A value of a document, members sorted.
  JsonWriter& Copy(JsonValue value);

  template <std::integral T>
  JsonWriter& Value(T value) {
    if constexpr (std::same_as<T, bool>) return Bool(value);
    return Int(static_cast<int64_t>(value));
  }
  template <std::floating_point T>
  JsonWriter& Value(T value) {
    return Double(static_cast<double>(value));
  }
  JsonWriter& Value(absl::string_view value) { return String(value); }
  template <typename List>
  JsonWriter& Values(const List& list) {
    BeginArray();
    for (const auto& value : list) Value(value);
    return EndArray();
  }
  template <typename T>
  JsonWriter& Field(absl::string_view key, const T& value) {
    Key(key);
    return Value(value);
  }

  std::string Take() { return std::move(out_); }

 private:
  JsonWriter& Open(char bracket);
  JsonWriter& Close(char bracket);
  void BeforeValue();
  void Quote(absl::string_view text);

  std::string out_;
  bool comma_ = false;  // the next element needs a comma before it
};

}  // namespace moert

#endif  // MOERT_LIB_BASE_JSON_WRITER_H_
