// The fetches that were recorded into CUDA graphs: a replay needs the slots that its record had.
#ifndef MOERT_LIB_EXEC_CUDA_FETCH_CAPTURED_FETCHES_H_
#define MOERT_LIB_EXEC_CUDA_FETCH_CAPTURED_FETCHES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "store/versioned_store.h"

namespace moert::cuda {

class CapturedFetches {
 public:
  explicit CapturedFetches(size_t layers) : layers_(layers) {}

  bool any() const { return any_; }
  /// A fetch of the layer is recorded, which needs this many slots of the region. A layer may have
  /// several.
  void Add(int layer, int64_t slots, const SlotRegion& region) {
    Captured& captured = layers_[static_cast<size_t>(layer)];
    captured.slots = std::max(captured.slots, slots);
    captured.base = region.base;
    any_ = true;
  }
  /// Whether replays are possible with the slots that the device has now, `slots` of each layer. If
  /// not, what was captured is forgotten: the error is reported once.
  template <typename Slots>
  absl::Status Check(const VersionedStore& store, Slots slots) {
    absl::Status checked = Find(store, slots);
    if (!checked.ok()) *this = CapturedFetches(layers_.size());
    return checked;
  }

 private:
  struct Captured {
    int64_t slots = 0;  // 0: nothing was captured
    const std::byte* base = nullptr;
  };

  template <typename Slots>
  absl::Status Find(const VersionedStore& store, Slots slots) const {
    for (size_t l = 0; l < layers_.size(); ++l) {
      const Captured& captured = layers_[l];
      const auto layer = static_cast<int>(l);
      if (captured.slots == 0) continue;
      MOERT_ASSIGN_OR_RETURN(const SlotRegion region, store.Slots(layer));
      if (region.base == captured.base && slots(layer) >= captured.slots) continue;
      return FailedPrecondition(
          "layer {}: a captured fetch needs {} slots where they were, and the device has {}: "
          "release what is leased or fetched before the step, and capture again",
          layer, captured.slots, slots(layer));
    }
    return absl::OkStatus();
  }

  std::vector<Captured> layers_;
  bool any_ = false;
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_FETCH_CAPTURED_FETCHES_H_
