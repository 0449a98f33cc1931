// The objects of an engine, connected in the order in which a call uses them.
#ifndef MOERT_LIB_ENGINE_ENGINE_PARTS_H_
#define MOERT_LIB_ENGINE_ENGINE_PARTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "engine/blueprint.h"
#include "engine/charges.h"
#include "engine/layer.h"
#include "exec/backend.h"
#include "exec/model_constants.h"
#include "moert/engine.h"
#include "moert/router.h"
#include "moert/stats.h"
#include "plan/layer_planner.h"
#include "prefetch/layer_prefetcher.h"
#include "store/acquire.h"
#include "store/block_pool.h"
#include "store/version_manager.h"
#include "store/versioned_store.h"
#include "transfer/link_pacer.h"

namespace moert {

/// Experts pinned for a host that reads weights in place. Use is thread-safe; all other calls are
/// made under the engine's lock.
class Leases {
 public:
  /// Borrows the store.
  explicit Leases(VersionedStore* store) : store_(store) {}

  /// Loads and pins the experts of context.layer as a step of `epoch` sees them. Counts lookups,
  /// hits and loads as a layer call does. On failure nothing stays pinned.
  absl::StatusOr<LeaseId> Acquire(StepId step, int64_t epoch, const PolicyContext& context,
                                  absl::Span<const int32_t> experts,
                                  std::vector<ExpertView>* views);
  /// Calls `use`, during which the lease cannot end. FailedPrecondition: it has ended.
  absl::Status Use(LeaseId lease,
                   absl::FunctionRef<absl::Status(absl::Span<const ExpertView>)> use) const;
  absl::Status Release(LeaseId lease);
  /// Releases all leases of a step.
  void ReleaseStep(StepId step);

 private:
  struct Lease {
    StepId step = 0;
    Pins pins;
    std::vector<ExpertView> views;
  };

  absl::Status Ended(LeaseId lease) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  VersionedStore* store_;
  mutable SharedMutex mu_;  // held shared to use leases, exclusively to add or remove them
  std::map<LeaseId, Lease> leases_ ABSL_GUARDED_BY(mu_);
  LeaseId next_ ABSL_GUARDED_BY(mu_) = 1;
};

/// The parts in the order in which they are made: each borrows from earlier ones. None is null
/// unless noted.
struct EngineParts {
  ModelConstants constants;
  std::unique_ptr<BudgetTracker> budget;
  std::unique_ptr<LinkEstimate> link;
  std::unique_ptr<VersionedStore> store;
  std::unique_ptr<VersionManager> versions;  // null: a plain cache
  std::unique_ptr<Router> router;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<LayerPrefetcher> prefetcher;
  std::unique_ptr<LayerPlanner> scheduler;
  std::unique_ptr<Charges> charges;
  std::unique_ptr<LayerRunner> runner;
  absl::Status misses_served;  // LayerRunner::ServeMisses
  std::unique_ptr<Leases> leases;
};

/// Reserves the pools, reads the constants and, for preloading strategies, loads every expert.
/// Borrows its arguments.
absl::StatusOr<std::unique_ptr<EngineParts>> MakeEngineParts(const ExpertSource* source,
                                                             const EngineOptions& options,
                                                             const Blueprint& blueprint);

/// Maps the pools' memory in advance if loads must not wait for mapping: those of a version manager
/// at the beginning of steps, and those behind a call if a CPU computes misses.
void HoldPools(const Blueprint& blueprint, VersionedStore* store);

/// The counts since the parts were made. fixed_bytes: the budget's bytes that are not in pools.
EngineStats CollectStats(const EngineParts& parts, int64_t fixed_bytes);

/// The number of policy decisions that were replaced by the default.
int64_t CollectFallbacks(const EngineParts& parts);

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_ENGINE_PARTS_H_
