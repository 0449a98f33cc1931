// Makes text from files safe for messages.
#ifndef MOERT_EXAMPLES_UTIL_PRINTABLE_H_
#define MOERT_EXAMPLES_UTIL_PRINTABLE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace moert::util {

/// Keeps printable ASCII and replaces every other byte by \xNN, so that no escape sequence reaches
/// a terminal. Only the first `limit` bytes of `text` are kept, with dots for the rest.
inline std::string Printable(absl::string_view text, size_t limit = 80) {
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

}  // namespace moert::util

#endif  // MOERT_EXAMPLES_UTIL_PRINTABLE_H_
