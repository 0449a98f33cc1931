// moert_matrix and the C++ MatrixLayout.
#ifndef MOERT_CAPI_SRC_RECORD_H_
#define MOERT_CAPI_SRC_RECORD_H_

#include "absl/strings/string_view.h"
#include "moert.h"
#include "moert/scheme.h"

namespace moert::capi {

/// The scheme's name is static.
moert_matrix ToC(const MatrixLayout& matrix);

/// A permanent NUL-terminated copy of the text. For names, of which a process has few. Thread-safe.
const char* Intern(absl::string_view text);

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_RECORD_H_
