#include "base/json_scan.h"

#include "absl/strings/string_view.h"

namespace moert::json_scan {
namespace {

// Value of a hexadecimal digit; -1: none.
int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Four hexadecimal digits; -1: not four.
int32_t HexUnit(const char* p) {
  int32_t unit = 0;
  for (int i = 0; i < 4; ++i) {
    const int digit = HexDigit(p[i]);
    if (digit < 0) return -1;
    unit = unit << 4 | digit;
  }
  return unit;
}

bool IsHigh(int32_t unit) { return unit >= 0xd800 && unit < 0xdc00; }
bool IsLow(int32_t unit) { return unit >= 0xdc00 && unit < 0xe000; }

// The place after the escape that begins with a backslash at p; null: illegal.
const char* CheckEscape(const char* p, const char* end) {
  if (end - p < 2) return nullptr;
  if (absl::string_view("\"\\/bfnrt").find(p[1]) != absl::string_view::npos) return p + 2;
  if (p[1] != 'u' || end - p < 6) return nullptr;
  const int32_t unit = HexUnit(p + 2);
  if (unit < 0 || IsLow(unit)) return nullptr;
  if (!IsHigh(unit)) return p + 6;
  const bool paired = end - p >= 12 && p[6] == '\\' && p[7] == 'u' && IsLow(HexUnit(p + 8));
  return paired ? p + 12 : nullptr;
}

}  // namespace

int Utf8Length(const char* text, const char* end) {
  const auto* const p = reinterpret_cast<const unsigned char*>(text);
  const auto in = [&](int i, unsigned char low, unsigned char high) {
    return text + i < end && p[i] >= low && p[i] <= high;
  };
  const unsigned char c = *p;
  if (c < 0x80) return 1;
  if (c < 0xc2) return 0;
  if (c < 0xe0) return in(1, 0x80, 0xbf) ? 2 : 0;
  if (c < 0xf0) {
    const unsigned char low = c == 0xe0 ? 0xa0 : 0x80, high = c == 0xed ? 0x9f : 0xbf;
    return in(1, low, high) && in(2, 0x80, 0xbf) ? 3 : 0;
  }
  if (c > 0xf4) return 0;
  const unsigned char low = c == 0xf0 ? 0x90 : 0x80, high = c == 0xf4 ? 0x8f : 0xbf;
  return in(1, low, high) && in(2, 0x80, 0xbf) && in(3, 0x80, 0xbf) ? 4 : 0;
}

uint32_t DecodeUtf8(const char* text, int length) {
  const auto c = static_cast<unsigned char>(*text);
  uint32_t point = length == 1 ? c : c & (0x7fu >> length);
  for (int i = 1; i < length; ++i) {
    point = point << 6 | (static_cast<unsigned char>(text[i]) & 0x3fu);
  }
  return point;
}

const char* SkipValue(const char* p) {
  if (*p == '"') return SkipString(p);
  if (*p != '[' && *p != '{') {
    while (*p != ',' && *p != ']' && *p != '}' && *p != '\0' && !IsSpace(*p)) ++p;
    return p;
  }
  for (int depth = 0;;) {
    if (*p == '"') {
      p = SkipString(p);
      continue;
    }
    depth += (*p == '[' || *p == '{') - (*p == ']' || *p == '}');
    ++p;
    if (depth == 0) return p;
  }
}

uint32_t NextCodePoint(const char** p) {
  const char* const s = *p;
  const auto c = static_cast<unsigned char>(*s);
  if (c == '\\') {
    *p = s + 2;
    switch (s[1]) {
      case 'b':
        return '\b';
      case 'f':
        return '\f';
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'u':
        break;
      default:
        return static_cast<unsigned char>(s[1]);
    }
    const int32_t unit = HexUnit(s + 2);
    *p = s + 6;
    if (!IsHigh(unit)) return static_cast<uint32_t>(unit);
    *p = s + 12;
    return 0x10000u + (static_cast<uint32_t>(unit - 0xd800) << 10) +
           static_cast<uint32_t>(HexUnit(s + 8) - 0xdc00);
  }
  const int length = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
  *p = s + length;
  return DecodeUtf8(s, length);
}

int CompareStrings(const char* a, const char* b) {
  ++a;
  ++b;
  while (*a != '"' && *b != '"') {
    const uint32_t x = NextCodePoint(&a), y = NextCodePoint(&b);
    if (x != y) return x < y ? -1 : 1;
  }
  return (*a != '"') - (*b != '"');
}

const char* CheckString(const char* p, const char* end, const char** error) {
  for (++p; p < end;) {
    if (*p == '"') return p + 1;
    if (*p == '\\') {
      p = CheckEscape(p, end);
      if (p != nullptr) continue;
      *error = "illegal escape";
      return nullptr;
    }
    if (static_cast<unsigned char>(*p) < 0x20) {
      *error = "control character in a string";
      return nullptr;
    }
    const int length = Utf8Length(p, end);
    if (length == 0) {
      *error = "not UTF-8";
      return nullptr;
    }
    p += length;
  }
  *error = "string without end";
  return nullptr;
}

const char* CheckNumber(const char* p, const char* end, const char** error) {
  const auto digits = [&] {
    const char* const first = p;
    while (p < end && IsDigit(*p)) ++p;
    return p != first;
  };
  *error = "illegal number";
  if (*p == '-') ++p;
  if (p < end && *p == '0') {
    ++p;
  } else if (!digits()) {
    return nullptr;
  }
  if (p < end && *p == '.') {
    ++p;
    if (!digits()) return nullptr;
  }
  if (p < end && (*p == 'e' || *p == 'E')) {
    ++p;
    if (p < end && (*p == '+' || *p == '-')) ++p;
    if (!digits()) return nullptr;
  }
  return p;
}

}  // namespace moert::json_scan
