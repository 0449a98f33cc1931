// The parts of an ExpertStore, for it and for the Prefetcher that drives it.
#ifndef MOERT_LIB_STORE_STORE_IMPL_H_
#define MOERT_LIB_STORE_STORE_IMPL_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/mutex.h"
#include "moert/expert_store.h"
#include "store/acquire.h"
#include "store/block_pool.h"
#include "store/versioned_store.h"

namespace moert {

struct ExpertStore::Impl {
  /// The options have been checked.
  static absl::StatusOr<std::shared_ptr<Impl>> Create(std::shared_ptr<const ExpertSource> source,
                                                      ExpertStoreOptions options);

  const MoeModelSpec& model() const { return source->model(); }
  absl::Status CheckKey(ExpertKey key) const;
  /// The context of a call of `layer`. Layers that come in order belong to one step.
  PolicyContext BeginCall(int layer, Phase phase) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  /// The next call begins a step.
  void EndStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  /// Brings and pins experts of one layer.
  absl::Status Acquire(int layer, absl::Span<const int32_t> experts, Pins* pins)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  /// Unpins what Acquire pinned, and has layers give back what they hold too much of.
  void Release(absl::Span<const ExpertKey> pinned) ABSL_LOCKS_EXCLUDED(mu);

  std::shared_ptr<const ExpertSource> source;
  std::shared_ptr<HostAllocator> allocator;
  std::unique_ptr<ResidencyPolicy> policy;  // the host's; may be null
  std::unique_ptr<CachePolicy> residency;   // carries it out; asked under mu
  int64_t block_bytes = 0;
  int64_t slots = 0;
  WallClock clock;
  BudgetTracker budget{0};

  mutable Mutex mu;
  /// Itself never replaced; what it points to is guarded.
  std::unique_ptr<VersionedStore> store ABSL_PT_GUARDED_BY(mu);
  int64_t step ABSL_GUARDED_BY(mu) = 0;
  int last_layer ABSL_GUARDED_BY(mu) = -1;  // of the step; -1: none yet
  /// Hears how long a call has waited for loads; null where there is no prefetcher. A prefetcher
  /// also shows the residency policy every routing.
  std::function<void(int64_t begin_ns, int64_t now_ns)> on_wait ABSL_GUARDED_BY(mu);
};

}  // namespace moert

#endif  // MOERT_LIB_STORE_STORE_IMPL_H_
