// Makes text from untrusted files safe for messages.
#ifndef MOERT_LIB_BASE_PRINTABLE_H_
#define MOERT_LIB_BASE_PRINTABLE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace moert {

/// Keeps printable ASCII and writes every other byte as \xNN, so that no escape sequence reaches a
/// terminal. Uses at most `limit` bytes of `text`, with dots in place of the rest.
std::string Printable(absl::string_view text, size_t limit = 80);

/// Whether a name found in a file can name a file in the same folder, and may appear in messages: 1
/// to 255 characters of printable ASCII without slashes, neither "." nor "..".
bool IsPlainFileName(absl::string_view name);

}  // namespace moert

#endif  // MOERT_LIB_BASE_PRINTABLE_H_
