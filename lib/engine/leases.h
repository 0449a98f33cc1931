// Experts pinned for a host that reads weights in place.
#ifndef MOERT_LIB_ENGINE_LEASES_H_
#define MOERT_LIB_ENGINE_LEASES_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "moert/engine.h"
#include "store/acquire.h"
#include "store/versioned_store.h"

namespace moert {

/// Called under the engine's lock, but for Use, which is thread-safe.
class Leases {
 public:
  /// Borrowed.
  explicit Leases(VersionedStore* store) : store_(store) {}

  /// Brings and pins the experts of context.layer as a step of `epoch` sees them. Counts lookups,
  /// hits and loads as a layer call does. On failure nothing stays pinned.
  absl::StatusOr<LeaseId> Acquire(StepId step, int64_t epoch, const PolicyContext& context,
                                  absl::Span<const int32_t> experts,
                                  std::vector<ExpertView>* views);
  /// Calls `use` while the lease cannot end. FailedPrecondition: it has ended.
  absl::Status Use(LeaseId lease,
                   absl::FunctionRef<absl::Status(absl::Span<const ExpertView>)> use) const;
  absl::Status Release(LeaseId lease);
  /// All leases of a step.
  void ReleaseStep(StepId step);

 private:
  struct Lease {
    StepId step = 0;
    Pins pins;
    std::vector<ExpertView> views;
  };

  absl::Status Ended(LeaseId lease) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  VersionedStore* store_;
  mutable SharedMutex mu_;  // shared: leases in use; alone: leases come and go
  std::map<LeaseId, Lease> leases_ ABSL_GUARDED_BY(mu_);
  LeaseId next_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_LEASES_H_
