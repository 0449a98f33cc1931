// errno as a Status.
#ifndef MOERT_LIB_BASE_POSIX_ERROR_H_
#define MOERT_LIB_BASE_POSIX_ERROR_H_

#include <string>

#include "absl/status/status.h"

namespace moert {

/// "<what>: <reason>", with the code that fits `error`.
inline absl::Status PosixError(int error, const std::string& what) {
  return absl::ErrnoToStatus(error, what);
}

}  // namespace moert

#endif  // MOERT_LIB_BASE_POSIX_ERROR_H_
