// Experts pinned for a host that reads weights in place.
#ifndef MOERT_LIB_ENGINE_LEASES_H_
#define MOERT_LIB_ENGINE_LEASES_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/engine.h"
#include "moert/expert_store.h"

namespace moert {

/// Called under the engine's lock.
class Leases {
 public:
  /// Borrowed.
  Leases(ExpertStore* store, EngineStats* stats) : store_(store), stats_(stats) {}

  /// Brings and pins the experts of context.layer as a step of `epoch` sees them. Counts lookups,
  /// hits and loads as a layer call does. On failure nothing stays pinned.
  absl::StatusOr<LeaseId> Acquire(StepId step, int64_t epoch, const PolicyContext& context,
                                  absl::Span<const int32_t> experts,
                                  std::vector<ExpertView>* views);
  absl::Status Release(LeaseId lease);
  bool any() const { return !leases_.empty(); }
  /// All leases of a step.
  void ReleaseStep(StepId step);

 private:
  struct Lease {
    StepId step = 0;
    std::vector<ExpertKey> pinned;
  };

  absl::Status Bring(int64_t epoch, const PolicyContext& context, absl::Span<const int32_t> experts,
                     std::vector<ExpertKey>* pinned);
  void Unpin(const std::vector<ExpertKey>& keys);

  ExpertStore* store_;
  EngineStats* stats_;
  std::map<LeaseId, Lease> leases_;
  LeaseId next_ = 1;
};

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_LEASES_H_
