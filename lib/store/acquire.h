// Bringing experts and pinning them where they lie.
#ifndef MOERT_LIB_STORE_ACQUIRE_H_
#define MOERT_LIB_STORE_ACQUIRE_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "moert/policy.h"
#include "store/versioned_store.h"

namespace moert {

/// Unpins what it holds when it dies.
class Pins {
 public:
  explicit Pins(VersionedStore* store) : store_(store) {}
  Pins(Pins&& other) noexcept : store_(other.store_), keys_(other.Take()) {}
  Pins& operator=(Pins&&) = delete;
  ~Pins() {
    for (const ExpertKey key : keys_) store_->Unpin(key);
  }
  absl::Span<const ExpertKey> keys() const { return keys_; }
  void Reserve(size_t more) { keys_.reserve(keys_.size() + more); }
  /// Within what was reserved.
  void Add(ExpertKey key) {
    keys_.push_back(key);
    store_->Pin(key);
  }
  /// The same of one that is pinned already.
  void Adopt(ExpertKey key) { keys_.push_back(key); }
  /// Hands them over: the caller unpins them.
  std::vector<ExpertKey> Take() { return std::exchange(keys_, {}); }

 private:
  VersionedStore* store_;
  std::vector<ExpertKey> keys_;
};

/// One layer call that wants `experts` of context.layer, all of which exist, as a step of `epoch`
/// sees them: looks them up, loads what is missing and pins each as it is there. On failure some of
/// them are pinned. `wait`: waits for an arrival as store->Wait() does.
absl::Status Acquire(VersionedStore* store, int64_t epoch, const PolicyContext& context,
                     absl::Span<const int32_t> experts, absl::FunctionRef<bool()> wait, Pins* pins);

}  // namespace moert

#endif  // MOERT_LIB_STORE_ACQUIRE_H_
