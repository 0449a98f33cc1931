// Promises that an engine makes of its output.
#ifndef MOERT_PROMISE_H_
#define MOERT_PROMISE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moert {

/// The strongest first. Derived from the parts of a strategy (Strategy::promise).
enum class Promise : int32_t {
  kExact = 0,  // the same bits at any budget
  /// The model's own routing, weights and precision. A CPU may compute beside the device, so that
  /// results differ by rounding.
  kFaithful = 1,
  kLossy = 2,  // routing or precision may differ from the model's, within the bounds that were set
};

absl::string_view PromiseName(Promise promise);  // "exact", "faithful", "lossy"
/// The promise of that name; InvalidArgument, with the names, for any other.
absl::StatusOr<Promise> ParsePromise(absl::string_view name);

}  // namespace moert

#endif  // MOERT_PROMISE_H_
