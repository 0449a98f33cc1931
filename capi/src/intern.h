// Text for pointers that hosts may keep.
#ifndef MOERT_CAPI_SRC_INTERN_H_
#define MOERT_CAPI_SRC_INTERN_H_

#include "absl/strings/string_view.h"

namespace moert::capi {

/// The same text, NUL-terminated, for ever. For names, of which a process has few. Thread-safe.
const char* Intern(absl::string_view text);

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_INTERN_H_
