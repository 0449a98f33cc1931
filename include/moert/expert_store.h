// ExpertStore: the experts of a model under a byte budget, for hosts with kernels of their own.
//
//   auto store = ExpertStore::Create(source, {.budget_bytes = int64_t{8} << 30});
//   auto lease = (*store)->Fetch({{layer, 3}, {layer, 17}});    // blocks until both are there
//   for (const ExpertView& expert : lease->experts()) Multiply(expert);  // where they lie
//   lease->Release();                                           // or let it go out of scope
//
// It is a cache in RAM: an expert is absent, arriving or present; which ones leave is the residency
// policy's choice (policy.h), but never one that is leased. Transfers run on threads of the store's
// own; a Fetch goes ahead of prefetches. Thread-safe: calls take turns, and a Fetch that waits
// keeps the others waiting. Records are readable from any thread while leased.
#ifndef MOERT_EXPERT_STORE_H_
#define MOERT_EXPERT_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/policy.h"
#include "moert/scheme.h"

namespace moert {

class ExpertSource;
class HostAllocator;

/// An expert's record in place in the fast tier. Read-only.
struct ExpertView {
  int expert = 0;
  const std::byte* record = nullptr;  // host or device memory, as the backend has it
  const RecordLayout* layout = nullptr;
  int version = 0;  // index into the versions served, 0 = most bits
};

/// The fast tier's copy of an expert.
enum class Residency : uint8_t { kAbsent = 0, kArriving = 1, kLow = 2, kHigh = 3 };

/// Counts of a store since it was made.
struct StoreStats {
  int64_t lookups = 0;  // distinct experts that layer calls need
  int64_t hits_resident = 0;
  int64_t hits_prefetched = 0;  // brought by a prefetch and used for the first time
  int64_t late = 0;             // absent, but on the way
  int64_t low_answers = 0;      // answered by a lower version than intended
  // Transfers that arrived.
  int64_t loads = 0;      // of absent experts, prefetches excluded
  int64_t low_loads = 0;  // of absent experts, in a lower version than the best
  int64_t bytes_loaded = 0;
  int64_t prefetch_bytes = 0;
  int64_t prefetch_useful = 0;  // prefetched experts that were used before they were evicted
  int64_t upgrades = 0;         // reloads that began
  int64_t evictions = 0;
  int64_t policy_fallbacks = 0;  // answers of the residency policy replaced by the default
};

struct ExpertStoreOptions {
  /// Most bytes of RAM that experts take, whole blocks; at least one block (the largest record,
  /// rounded up to kRecordAlignment).
  int64_t budget_bytes = 0;
  int version = 0;  // index of the source's version that is held
  /// Eviction and capacity policy: how many experts of each layer are kept; null: least recently
  /// used, all layers alike. Owned by the store, called under its lock.
  std::unique_ptr<ResidencyPolicy> residency = {};
  int io_threads = 2;                             // that read from the source; 1..16
  std::shared_ptr<HostAllocator> allocator = {};  // of the memory; null: the system
};

class ExpertStore {
 public:
  class Lease;

  /// InvalidArgument names the option, its value and the legal range.
  static absl::StatusOr<std::unique_ptr<ExpertStore>> Create(
      std::shared_ptr<const ExpertSource> source, ExpertStoreOptions options);
  ~ExpertStore();  // waits for transfers under way; leases may outlive the store

  /// Loads experts and pins them until the lease is released; blocks until all are there. Residency
  /// policies expect one layer per call. All or nothing: InvalidArgument for a key that does not
  /// exist, ResourceExhausted if these and leased ones exceed the budget, or a read's error.
  absl::StatusOr<Lease> Fetch(absl::Span<const ExpertKey> keys);
  /// Starts transfers of the absent experts, as far as blocks can be had. Does not block. Returns
  /// the number of transfers started; InvalidArgument for a key that does not exist.
  absl::StatusOr<int64_t> Prefetch(absl::Span<const ExpertKey> keys);
  /// The state of each expert of a layer, [E].
  absl::StatusOr<std::vector<Residency>> residency(int layer) const;

  int64_t block_bytes() const;  // that an expert takes: the version's largest record, rounded up
  int64_t slots() const;        // experts that the budget holds
  const MoeModelSpec& model() const;
  StoreStats stats() const;

 private:
  friend class Prefetcher;
  struct Impl;
  explicit ExpertStore(std::shared_ptr<Impl> impl);
  const std::shared_ptr<Impl> impl_;
};

/// Experts pinned where they lie. Movable; thread-compatible.
class ExpertStore::Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept { *this = std::move(other); }
  Lease& operator=(Lease&& other) noexcept;
  ~Lease() { Release(); }

  /// In the order of the keys. Valid until Release.
  absl::Span<const ExpertView> experts() const { return views_; }
  void Release();  // gives the experts back; a second time does nothing

 private:
  friend class ExpertStore;
  std::shared_ptr<Impl> store_;  // null: released
  std::vector<ExpertKey> keys_;
  std::vector<ExpertView> views_;
};

}  // namespace moert

#endif  // MOERT_EXPERT_STORE_H_
