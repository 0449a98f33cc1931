// Text from untrusted files in messages.
#ifndef MOERT_LIB_BASE_PRINTABLE_H_
#define MOERT_LIB_BASE_PRINTABLE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace moert {

/// Printable ASCII as it is, every other byte as \xNN: no escape sequence reaches a terminal. Cut
/// to `limit` bytes of `text`, with dots in place of what is left out.
std::string Printable(absl::string_view text, size_t limit = 80);

/// Whether a name that a file gives is one of a file beside it, and may stand in messages: 1 to 255
/// characters of printable ASCII without slashes, neither "." nor "..".
bool IsPlainFileName(absl::string_view name);

}  // namespace moert

#endif  // MOERT_LIB_BASE_PRINTABLE_H_
