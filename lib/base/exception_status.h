// Converts exceptions to statuses. Reporting exhausted memory must not need memory itself.
#ifndef MOERT_LIB_BASE_EXCEPTION_STATUS_H_
#define MOERT_LIB_BASE_EXCEPTION_STATUS_H_

#include <exception>
#include <new>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace moert {

/// ResourceExhausted "<what>: out of memory", without a message if that cannot be allocated.
inline absl::Status OutOfMemory(absl::string_view what) noexcept {
  try {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": out of memory"));
  } catch (...) {
    return absl::Status(absl::StatusCode::kResourceExhausted, "");
  }
}

/// Called in a handler: the status of the current exception. A thread that cannot be started is
/// ResourceExhausted.
inline absl::Status ExceptionStatus(absl::string_view what) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return OutOfMemory(what);
  } catch (const std::system_error& e) {
    const bool lack = e.code() == std::errc::resource_unavailable_try_again;
    const auto code = lack ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal;
    try {
      return absl::Status(code, absl::StrCat(what, ": ", e.what()));
    } catch (...) {
      return absl::Status(code, "");
    }
  } catch (const std::exception& e) {
    try {
      return absl::InternalError(absl::StrCat(what, ": ", e.what()));
    } catch (...) {
      return absl::Status(absl::StatusCode::kInternal, "");
    }
  } catch (...) {
    return absl::Status(absl::StatusCode::kInternal, "");
  }
}

/// Returns make(), or, if that throws, an error of `code` without a message.
template <typename Make>
absl::Status ErrorOr(absl::StatusCode code, const Make& make) noexcept {
  try {
    return make();
  } catch (...) {
    return absl::Status(code, "");
  }
}

}  // namespace moert

#endif  // MOERT_LIB_BASE_EXCEPTION_STATUS_H_
