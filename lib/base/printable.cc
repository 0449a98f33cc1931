#include "base/printable.h"

#include <algorithm>

namespace moert {

std::string Printable(absl::string_view text, size_t limit) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
  }
  if (text.size() > limit) out += "...";
  return out;
}

bool IsPlainFileName(absl::string_view name) {
  const auto forbidden = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte >= 0x7f || c == '/' || c == '\\';
  };
  return !name.empty() && name.size() < 256 && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(), forbidden);
}

}  // namespace moert
