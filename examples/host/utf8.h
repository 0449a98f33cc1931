// UTF-8 scanning that never reads past the end and never throws.
#ifndef MOERT_EXAMPLES_HOST_UTF8_H_
#define MOERT_EXAMPLES_HOST_UTF8_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace moert::host {

/// The first character of some bytes.
struct Utf8Unit {
  enum Kind { kValid, kInvalid, kIncomplete };
  Kind kind = kInvalid;
  /// Bytes of the character (kValid), of the maximal invalid subpart that one U+FFFD replaces
  /// (kInvalid), or all remaining bytes (kIncomplete: more could make it valid).
  int length = 0;
  char32_t code_point = 0;  // kValid only
};

/// Precondition: !text.empty(). Overlong forms, surrogates and values above U+10FFFF are invalid.
Utf8Unit ScanUtf8(absl::string_view text);

/// Appends `code_point` (a Unicode scalar value) to `out`.
void AppendUtf8(char32_t code_point, std::string* out);

/// `bytes` with every maximal invalid subpart replaced by U+FFFD.
std::string ToValidUtf8(absl::string_view bytes);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_UTF8_H_
