#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <deque>
#include <initializer_list>
#include <new>
#include <system_error>
#include <vector>

#include "base/errors.h"
#include "base/json_scan.h"
#include "base/printable.h"
#include "base/status_macros.h"

namespace moert {

using json_scan::CompareStrings;
using json_scan::IsDigit;
using json_scan::SkipSpace;
using json_scan::SkipString;
using json_scan::SkipValue;

namespace {

// Checks a whole text. Takes 4 bytes of memory per key of the open objects.
class Checker {
 public:
  Checker(absl::string_view text, const JsonLimits& limits)
      : begin_(text.data()), p_(text.data()), end_(text.data() + text.size()), limits_(limits) {}

  // Returns the error message; empty: the text is valid.
  std::string Run() {
    p_ = SkipSpace(p_);
    if (p_ == end_ || *p_ != '{') {
      if (p_ == end_) return Illegal("no value");
      return "the top level is not an object";
    }
    // A loop over values with an explicit stack of containers, so that depth costs no call stack.
    bool value = true;  // expected next
    while (value || !open_.empty()) {
      if (value && !Value()) return std::move(error_);
      value = false;
      if (open_.empty()) break;
      p_ = SkipSpace(p_);
      if (p_ == end_) return Illegal("the text ends inside an array or object");
      Container& top = open_.back();
      if (*p_ == (top.object ? '}' : ']')) {
        if (top.object && !CheckKeys(top)) return std::move(error_);
        ++p_;
        open_.pop_back();
        continue;
      }
      if (!top.empty && *p_++ != ',') return --p_, Illegal("no comma between two values");
      top.empty = false;
      if (top.object && !Key()) return std::move(error_);
      value = true;
    }
    p_ = SkipSpace(p_);
    return p_ == end_ ? "" : Illegal("more after the end of the value");
  }

 private:
  struct Container {
    bool object;
    size_t first_key;   // in keys_
    bool empty = true;  // so far
  };

  std::string Illegal(absl::string_view what) {
    return fmt::format("invalid JSON at byte {}: {}", p_ - begin_,
                       fmt::string_view(what.data(), what.size()));
  }
  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }

  bool Value() {
    p_ = SkipSpace(p_);
    if (++values_ > limits_.max_values) {
      return Fail(fmt::format("more than {} values", limits_.max_values));
    }
    if (p_ == end_) return Fail(Illegal("a value is missing"));
    if (*p_ == '{' || *p_ == '[') {
      if (static_cast<int>(open_.size()) >= limits_.max_depth) {
        return Fail(fmt::format("nested deeper than {}", limits_.max_depth));
      }
      open_.push_back({*p_++ == '{', keys_.size()});
      return true;
    }
    const char* error = "not a value";
    const char* after = nullptr;
    if (*p_ == '"') {
      after = json_scan::CheckString(p_, end_, &error);
    } else if (*p_ == '-' || IsDigit(*p_)) {
      after = json_scan::CheckNumber(p_, end_, &error);
    } else {
      after = Word({"true", "false", "null"});
    }
    if (after == nullptr && limits_.not_finite) after = Word({"Infinity", "-Infinity", "NaN"});
    if (after == nullptr) return Fail(Illegal(error));
    p_ = after;
    return true;
  }

  // The place after the one of `words` that begins here; null: none does.
  const char* Word(std::initializer_list<absl::string_view> words) const {
    const absl::string_view rest(p_, static_cast<size_t>(end_ - p_));
    for (const absl::string_view word : words) {
      if (rest.substr(0, word.size()) == word) return p_ + word.size();
    }
    return nullptr;
  }

  bool Key() {
    p_ = SkipSpace(p_);
    if (p_ == end_ || *p_ != '"') return Fail(Illegal("a member without a name"));
    keys_.push_back(static_cast<uint32_t>(p_ - begin_));
    const char* error = nullptr;
    const char* const after = json_scan::CheckString(p_, end_, &error);
    if (after == nullptr) return Fail(Illegal(error));
    p_ = SkipSpace(after);
    if (p_ == end_ || *p_ != ':') return Fail(Illegal("no colon behind a member's name"));
    ++p_;
    return true;
  }

  bool CheckKeys(const Container& object) {
    const auto first = keys_.begin() + static_cast<ptrdiff_t>(object.first_key);
    std::sort(first, keys_.end(), [this](uint32_t a, uint32_t b) {
      return CompareStrings(begin_ + a, begin_ + b) < 0;
    });
    const auto twice = std::adjacent_find(first, keys_.end(), [this](uint32_t a, uint32_t b) {
      return CompareStrings(begin_ + a, begin_ + b) == 0;
    });
    if (twice != keys_.end()) {
      const char* const key = begin_ + *twice;
      return Fail(fmt::format(
          "duplicate key {}",
          Printable(absl::string_view(key, static_cast<size_t>(SkipString(key) - key)))));
    }
    keys_.resize(object.first_key);
    return true;
  }

  const char* const begin_;
  const char* p_;
  const char* const end_;
  const JsonLimits& limits_;
  std::vector<Container> open_;
  std::deque<uint32_t> keys_;  // places of opening quotes; a deque grows without a second copy
  int64_t values_ = 0;
  std::string error_;
};

// The next element or key after the value that ends at `p`; null: the container ends.
const char* Next(const char* p) {
  p = SkipSpace(p);
  return *p == ',' ? SkipSpace(p + 1) : nullptr;
}

const char* ValueOf(const char* key) { return SkipSpace(SkipSpace(SkipString(key)) + 1); }

void AppendUtf8(uint32_t point, std::string* out) {
  const auto add = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (point < 0x80) return add(point);
  if (point < 0x800) {
    add(0xc0 | point >> 6);
  } else {
    if (point < 0x10000) {
      add(0xe0 | point >> 12);
    } else {
      add(0xf0 | point >> 18);
      add(0x80 | (point >> 12 & 0x3f));
    }
    add(0x80 | (point >> 6 & 0x3f));
  }
  add(0x80 | (point & 0x3f));
}

}  // namespace

std::optional<int64_t> JsonValue::AsInt() const {
  if (!is_number()) return std::nullopt;
  const absl::string_view s = text();
  int64_t value = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (error != std::errc() || end != s.data() + s.size()) return std::nullopt;
  return value;
}

std::optional<double> JsonValue::AsDouble() const {
  if (!is_number()) return std::nullopt;
  const absl::string_view s = text();
  double value = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (error == std::errc()) return std::isfinite(value) ? std::optional(value) : std::nullopt;
  // Out of range: a value too close to 0 counts as 0. Only a negative exponent or a leading 0 makes
  // a number that small.
  const bool small =
      s.find("e-") != s.npos || s.find("E-") != s.npos || s[s[0] == '-' ? 1 : 0] == '0';
  return small ? std::optional<double>(0.0) : std::nullopt;
}

std::optional<std::string> JsonValue::AsString() const {
  if (!is_string()) return std::nullopt;
  std::string out;
  const char* p = text_ + 1;
  while (*p != '"') {
    const char* const plain = p;
    while (*p != '"' && *p != '\\') ++p;
    out.append(plain, p);
    if (*p == '\\') AppendUtf8(json_scan::NextCodePoint(&p), &out);
  }
  return out;
}

bool JsonValue::Is(absl::string_view string) const {
  if (!is_string()) return false;
  const absl::string_view s = text().substr(1, text().size() - 2);
  if (s.find('\\') == s.npos) return s == string;
  return *AsString() == string;
}

absl::string_view JsonValue::text() const {
  return {text_, static_cast<size_t>(SkipValue(text_) - text_)};
}

size_t JsonValue::size() const {
  size_t count = 0;
  for ([[maybe_unused]] const JsonValue v : elements()) ++count;
  for ([[maybe_unused]] const JsonMember& m : members()) ++count;
  return count;
}

JsonValue::Elements JsonValue::elements() const {
  const char* const first = is_array() ? SkipSpace(text_ + 1) : nullptr;
  return Elements(first == nullptr || *first == ']' ? nullptr : first);
}

JsonValue::Members JsonValue::members() const {
  const char* const first = is_object() ? SkipSpace(text_ + 1) : nullptr;
  return Members(first == nullptr || *first == '}' ? nullptr : first);
}

JsonValue::Elements::Iterator& JsonValue::Elements::Iterator::operator++() {
  at_ = Next(SkipValue(at_));
  return *this;
}

JsonMember JsonValue::Members::Iterator::operator*() const {
  return {JsonValue(at_), JsonValue(ValueOf(at_))};
}

JsonValue::Members::Iterator& JsonValue::Members::Iterator::operator++() {
  at_ = Next(SkipValue(ValueOf(at_)));
  return *this;
}

std::optional<JsonValue> JsonValue::Find(absl::string_view key) const {
  for (const JsonMember& m : members()) {
    if (m.key.Is(key)) return m.value;
  }
  return std::nullopt;
}

JsonValue JsonDocument::root() const { return JsonValue(SkipSpace(text_.data())); }

absl::StatusOr<JsonDocument> JsonDocument::Parse(std::string text, const std::string& source,
                                                 const JsonLimits& limits) {
  const auto limit = std::min<int64_t>(limits.max_bytes, UINT32_MAX);
  if (static_cast<int64_t>(text.size()) > limit) {
    return InvalidArgument("{}: has {} bytes, legal is at most {}", source, text.size(), limit);
  }
  try {
    // A byte order mark.
    if (text.compare(0, 3, "\xEF\xBB\xBF") == 0) std::fill_n(text.begin(), 3, ' ');
    if (std::string error = Checker(text, limits).Run(); !error.empty()) {
      return InvalidArgument("{}: {}", source, error);
    }
    return JsonDocument(std::move(text));
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("{}: out of memory while parsing", source);
  }
}

absl::StatusOr<JsonDocument> JsonDocument::Read(Env* env, const std::string& path,
                                                const JsonLimits& limits) {
  MOERT_ASSIGN_OR_RETURN(const auto file, env->Open(path, FileAccess::kBuffered));
  if (file->size() > limits.max_bytes) {
    return InvalidArgument("{}: has {} bytes, legal is at most {}", path, file->size(),
                           limits.max_bytes);
  }
  try {
    std::string text(static_cast<size_t>(file->size()), '\0');
    MOERT_RETURN_IF_ERROR(
        file->Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size())));
    return Parse(std::move(text), path, limits);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("{}: out of memory while reading", path);
  }
}

}  // namespace moert
