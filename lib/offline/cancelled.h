// Ends a job that its caller has cancelled.
#ifndef MOERT_LIB_OFFLINE_CANCELLED_H_
#define MOERT_LIB_OFFLINE_CANCELLED_H_

#include <functional>

#include "absl/status/status.h"

namespace moert::offline {

/// Cancelled if `cancelled`, which may be null, says so.
inline absl::Status CheckWanted(const std::function<bool()>& cancelled) {
  if (cancelled && cancelled()) return absl::CancelledError("interrupted");
  return absl::OkStatus();
}

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_CANCELLED_H_
