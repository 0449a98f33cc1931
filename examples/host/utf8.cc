#include "host/utf8.h"

namespace moert::host {

Utf8Unit ScanUtf8(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {Utf8Unit::kValid, 1, first};
  int length = 0;
  char32_t value = 0;
  // The legal range of the second byte excludes overlong forms, surrogates and values too large.
  uint8_t low = 0x80, high = 0xBF;
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
    value = first & 0x1F;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    value = first & 0x0F;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    value = first & 0x07;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  } else {
    return {Utf8Unit::kInvalid, 1, 0};
  }
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == text.size()) return {Utf8Unit::kIncomplete, i, 0};
    if (byte(i) < low || byte(i) > high) return {Utf8Unit::kInvalid, i, 0};
    value = (value << 6) | (byte(i) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Unit::kValid, length, value};
}

void AppendUtf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (c >> 6)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | (c >> 12)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | (c >> 18)));
    out->push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

std::string ToValidUtf8(absl::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Unit unit = ScanUtf8(bytes);
    if (unit.kind == Utf8Unit::kValid) {
      out.append(bytes.data(), unit.length);
    } else {
      out.append("\xEF\xBF\xBD");
    }
    bytes.remove_prefix(unit.length);
  }
  return out;
}

}  // namespace moert::host
