// JSON from untrusted files: bounded size, depth and number of values, strict UTF-8, no duplicate
// keys, no exceptions but std::bad_alloc. A document is its text, checked once; values are pointers
// into the text. So a document takes only the memory of its text, and destruction never allocates.
#ifndef MOERT_LIB_BASE_JSON_H_
#define MOERT_LIB_BASE_JSON_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "moert/tools/env.h"

namespace moert {

struct JsonLimits {
  int64_t max_bytes = 100'000'000;
  int max_depth = 32;
  int64_t max_values = 2'000'000;  // keys are not counted
  bool not_finite = false;         // allows Infinity, -Infinity and NaN, as Python writes them
};

struct JsonMember;

/// A value, borrowed from its document. Access walks the text: visit members and elements in one
/// pass, not by index.
class JsonValue {
 public:
  class Elements;
  class Members;

  bool is_null() const { return *text_ == 'n'; }
  bool is_bool() const { return *text_ == 't' || *text_ == 'f'; }
  bool is_number() const { return *text_ == '-' || (*text_ >= '0' && *text_ <= '9'); }
  bool is_string() const { return *text_ == '"'; }
  bool is_array() const { return *text_ == '['; }
  bool is_object() const { return *text_ == '{'; }

  /// The value must be a bool.
  bool AsBool() const { return *text_ == 't'; }
  /// No value if it is not a number without fraction and exponent, or is out of range.
  std::optional<int64_t> AsInt() const;
  /// No value if it is not a finite number, or exceeds the range of a double.
  std::optional<double> AsDouble() const;
  /// The string with escapes resolved; no value if it is not a string.
  std::optional<std::string> AsString() const;
  /// Whether it is this string.
  bool Is(absl::string_view string) const;

  /// The number of elements of an array or members of an object; else 0. Walks the text.
  size_t size() const;
  /// The elements of an array; empty for other values.
  Elements elements() const;
  /// The members of an object; empty for other values.
  Members members() const;
  /// A member of an object; no value if there is none.
  std::optional<JsonValue> Find(absl::string_view key) const;

  /// The value as it is written in the document.
  absl::string_view text() const;

 private:
  friend class JsonDocument;
  explicit JsonValue(const char* text) : text_(text) {}
  const char* text_;  // the value's first character, in a checked document
};

struct JsonMember {
  JsonValue key;  // a string
  JsonValue value;
};

class JsonValue::Elements {
 public:
  class Iterator {
   public:
    JsonValue operator*() const { return JsonValue(at_); }
    Iterator& operator++();
    bool operator!=(std::default_sentinel_t) const { return at_ != nullptr; }

   private:
    friend class Elements;
    explicit Iterator(const char* at) : at_(at) {}
    const char* at_;  // null: behind the last
  };
  Iterator begin() const { return Iterator(first_); }
  std::default_sentinel_t end() const { return {}; }

 private:
  friend class JsonValue;
  explicit Elements(const char* first) : first_(first) {}
  const char* first_;
};

class JsonValue::Members {
 public:
  class Iterator {
   public:
    JsonMember operator*() const;
    Iterator& operator++();
    bool operator!=(std::default_sentinel_t) const { return at_ != nullptr; }

   private:
    friend class Members;
    explicit Iterator(const char* at) : at_(at) {}
    const char* at_;  // a key; null: behind the last
  };
  Iterator begin() const { return Iterator(first_); }
  std::default_sentinel_t end() const { return {}; }

 private:
  friend class JsonValue;
  explicit Members(const char* first) : first_(first) {}
  const char* first_;
};

/// A checked text whose top level is an object.
class JsonDocument {
 public:
  /// `source` (a path) begins every error message.
  static absl::StatusOr<JsonDocument> Parse(std::string text, const std::string& source,
                                            const JsonLimits& limits = {});
  /// Reads and parses a whole file.
  static absl::StatusOr<JsonDocument> Read(Env* env, const std::string& path,
                                           const JsonLimits& limits = {});

  JsonValue root() const;
  const std::string& text() const { return text_; }
  /// Values stay valid as long as the returned text lives and is only moved, if it is longer than
  /// 15 bytes (shorter strings move their characters).
  std::string TakeText() && { return std::move(text_); }

 private:
  explicit JsonDocument(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

}  // namespace moert

#endif  // MOERT_LIB_BASE_JSON_H_
