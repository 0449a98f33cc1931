// The wrapper around every entry point: turns statuses into codes and error objects, and stops
// exceptions.
#ifndef MOERT_CAPI_SRC_GUARD_H_
#define MOERT_CAPI_SRC_GUARD_H_

#include <cstdint>
#include <exception>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "moert.h"

struct moert_error {
  moert_code code = MOERT_UNKNOWN;
  std::string message;
  const char* origin = "";
};

/// Owned by the caller of a callback, filled by the callback.
struct moert_failure {
  std::string message;
};

namespace moert::capi {

/// Stores the error object (a fixed one if there is no memory for it) and returns the code.
moert_code Report(const absl::Status& status, const char* origin, moert_error** error) noexcept;

/// For callers without memory for any other error.
moert_code ReportOutOfMemory(moert_error** error) noexcept;

/// The status of a callback that returned `code`; `what` names the callback in messages.
absl::Status FromCallback(moert_code code, const moert_failure& failure, absl::string_view what);

template <typename Body>
moert_code Guard(const char* origin, moert_error** error, Body&& body) noexcept {
  try {
    try {
      return Report(body(), origin, error);
    } catch (const std::bad_alloc&) {
      return ReportOutOfMemory(error);
    } catch (const std::exception& e) {
      return Report(absl::InternalError(absl::StrCat("exception: ", e.what())), origin, error);
    } catch (...) {
      return Report(absl::InternalError("exception of unknown type"), origin, error);
    }
  } catch (...) {  // no memory for the message of the exception
    return ReportOutOfMemory(error);
  }
}

inline absl::Status NullArgument(const char* name) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": must not be NULL"));
}

/// InvalidArgument with the concatenated arguments as its message.
template <typename... Args>
absl::Status Illegal(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

/// Whether a value that messages call `name` is in [low, high].
inline absl::Status CheckRange(absl::string_view name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Illegal(name, " is ", value, ", legal is ", low, " to ", high);
}
inline absl::Status CheckFlag(absl::string_view name, int64_t value) {
  if (value == 0 || value == 1) return absl::OkStatus();
  return Illegal(name, " is ", value, ", legal is 0 or 1");
}

/// For use in a body that is given to Guard.
#define MOERT_REQUIRE_NOT_NULL(argument) \
  if ((argument) == nullptr) return ::moert::capi::NullArgument(#argument)

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_GUARD_H_
