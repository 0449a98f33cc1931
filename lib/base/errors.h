// Makes errors with a code and a text in fmt's notation:
// InvalidArgument("{}: has {} bytes", path, bytes).
#ifndef MOERT_LIB_BASE_ERRORS_H_
#define MOERT_LIB_BASE_ERRORS_H_

#include <utility>

#include "absl/status/status.h"
#include "fmt/format.h"

namespace moert {

template <absl::StatusCode kCode>
struct ErrorOf {
  template <typename... Args>
  absl::Status operator()(fmt::format_string<Args...> text, Args&&... args) const {
    return absl::Status(kCode, fmt::format(text, std::forward<Args>(args)...));
  }
};

inline constexpr ErrorOf<absl::StatusCode::kAborted> Aborted;
inline constexpr ErrorOf<absl::StatusCode::kAlreadyExists> AlreadyExists;
inline constexpr ErrorOf<absl::StatusCode::kCancelled> Cancelled;
inline constexpr ErrorOf<absl::StatusCode::kDataLoss> DataLoss;
inline constexpr ErrorOf<absl::StatusCode::kDeadlineExceeded> DeadlineExceeded;
inline constexpr ErrorOf<absl::StatusCode::kFailedPrecondition> FailedPrecondition;
inline constexpr ErrorOf<absl::StatusCode::kInternal> Internal;
inline constexpr ErrorOf<absl::StatusCode::kInvalidArgument> InvalidArgument;
inline constexpr ErrorOf<absl::StatusCode::kNotFound> NotFound;
inline constexpr ErrorOf<absl::StatusCode::kOutOfRange> OutOfRange;
inline constexpr ErrorOf<absl::StatusCode::kResourceExhausted> ResourceExhausted;
inline constexpr ErrorOf<absl::StatusCode::kUnavailable> Unavailable;
inline constexpr ErrorOf<absl::StatusCode::kUnimplemented> Unimplemented;

}  // namespace moert

#endif  // MOERT_LIB_BASE_ERRORS_H_
