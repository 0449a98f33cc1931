// errno as a Status.
#ifndef MOERT_LIB_BASE_POSIX_ERROR_H_
#define MOERT_LIB_BASE_POSIX_ERROR_H_

#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace moert {

/// "<what>: <reason>", with the code that fits `error`. absl::ErrnoToStatus would first build a
/// table of all reasons, which may fail when descriptors or memory have run out.
inline absl::Status PosixError(int error, const std::string& what) {
  char buffer[128];
  const char* const reason = strerror_r(error, buffer, sizeof(buffer));  // GNU's: never null
  return absl::Status(absl::ErrnoToStatusCode(error), absl::StrCat(what, ": ", reason));
}

}  // namespace moert

#endif  // MOERT_LIB_BASE_POSIX_ERROR_H_
