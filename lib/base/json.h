// JSON from untrusted files: bounded size, depth and number of values, strict UTF-8, no duplicate
// keys, no exceptions but std::bad_alloc. A document is its text, checked once; values are places
// in it. So memory is that of the text, and nothing is allocated when a document dies.
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
  bool not_finite = false;         // Infinity, -Infinity and NaN are values, as Python writes them
};

struct JsonMember;

/// Borrowed from its document. Access walks the text: members and elements are to be visited in one
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

  /// Only of a bool.
  bool AsBool() const { return *text_ == 't'; }
  /// Nothing: not a number without fraction and exponent, or out of range.
  std::optional<int64_t> AsInt() const;
  /// Nothing: not a finite number, or beyond what a double holds.
  std::optional<double> AsDouble() const;
  /// Nothing: not a string. Escapes are resolved.
  std::optional<std::string> AsString() const;
  /// Whether it is this string.
  bool Is(absl::string_view string) const;

  /// Elements of an array, members of an object; 0 of all else. Walks the text.
  size_t size() const;
  /// The elements of an array; empty for all else.
  Elements elements() const;
  /// The members of an object; empty for all else.
  Members members() const;
  /// A member of an object, or nothing.
  std::optional<JsonValue> Find(absl::string_view key) const;

  /// As it is written in the document.
  absl::string_view text() const;

 private:
  friend class JsonDocument;
  explicit JsonValue(const char* text) : text_(text) {}
  const char* text_;  // its first character, inside a checked document
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
  /// Values stay valid while the text, longer than 15 bytes, lives and is moved only.
  std::string TakeText() && { return std::move(text_); }

 private:
  explicit JsonDocument(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

}  // namespace moert

#endif  // MOERT_LIB_BASE_JSON_H_
