// Loads experts and pins them in place.
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

/// A set of pins. Unpins the experts that it holds when it is destroyed.
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
  /// Pins an expert and holds the pin. Needs room from Reserve.
  void Add(ExpertKey key) {
    keys_.push_back(key);
    store_->Pin(key);
  }
  /// Takes over the pin of an expert that is pinned already.
  void Adopt(ExpertKey key) { keys_.push_back(key); }
  /// Hands the pins over to the caller, who has to unpin the experts.
  std::vector<ExpertKey> Take() { return std::exchange(keys_, {}); }

 private:
  VersionedStore* store_;
  std::vector<ExpertKey> keys_;
};

/// One layer call that needs `experts` of context.layer, which must all exist, as a step of `epoch`
/// sees them: looks them up, loads the missing ones and pins each once it is present. On failure
/// some of them are pinned. `wait`: waits for an arrival as store->Wait() does.
absl::Status Acquire(VersionedStore* store, int64_t epoch, const PolicyContext& context,
                     absl::Span<const int32_t> experts, absl::FunctionRef<bool()> wait, Pins* pins);

}  // namespace moert

#endif  // MOERT_LIB_STORE_ACQUIRE_H_
