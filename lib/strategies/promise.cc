#include "moert/promise.h"

#include "base/errors.h"
#include "base/fmt_absl.h"

namespace moert {

absl::string_view PromiseName(Promise promise) {
  switch (promise) {
    case Promise::kExact:
      return "exact";
    case Promise::kFaithful:
      return "faithful";
    case Promise::kLossy:
      return "lossy";
  }
  return "unknown";
}

absl::StatusOr<Promise> ParsePromise(absl::string_view name) {
  for (const Promise promise : {Promise::kExact, Promise::kFaithful, Promise::kLossy}) {
    if (name == PromiseName(promise)) return promise;
  }
  return InvalidArgument(
      "promise '{}': must be exact (the same bits at any budget), faithful (the model's own "
      "routing and precision; a CPU may compute beside a GPU) or lossy",
      name);
}

}  // namespace moert
