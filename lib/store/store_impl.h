// The implementation of an ExpertStore, shared with the Prefetcher that drives it.
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
  /// Begins a call of `layer` and returns its context. Calls in ascending order of layers belong to
  /// one step.
  PolicyContext BeginCall(int layer, Phase phase) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  /// Makes the next call begin a new step.
  void EndStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  /// Loads and pins experts of one layer.
  absl::Status Acquire(int layer, absl::Span<const int32_t> experts, Pins* pins)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  /// Unpins the experts that Acquire pinned, and makes layers give back blocks beyond their
  /// capacity.
  void Release(absl::Span<const ExpertKey> pinned) ABSL_LOCKS_EXCLUDED(mu);

  std::shared_ptr<const ExpertSource> source;
  std::shared_ptr<HostAllocator> allocator;
  std::unique_ptr<ResidencyPolicy> policy;  // the host's; may be null
  std::unique_ptr<CachePolicy> residency;   // carries out `policy`; asked under mu
  int64_t block_bytes = 0;
  int64_t slots = 0;
  WallClock clock;
  BudgetTracker budget{0};

  mutable Mutex mu;
  /// The pointer never changes; the store that it points to is guarded.
  std::unique_ptr<VersionedStore> store ABSL_PT_GUARDED_BY(mu);
  int64_t step ABSL_GUARDED_BY(mu) = 0;
  int last_layer ABSL_GUARDED_BY(mu) = -1;  // of the step; -1: none yet
  /// Called with the time that a call has waited for loads; null without a prefetcher. A prefetcher
  /// also shows every routing to the residency policy.
  std::function<void(int64_t begin_ns, int64_t now_ns)> on_wait ABSL_GUARDED_BY(mu);
};

}  // namespace moert

#endif  // MOERT_LIB_STORE_STORE_IMPL_H_
