// VersionedStore: the number of slots, and each layer's share of them.
#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/errors.h"
#include "store/block_pool.h"
#include "store/versioned_store.h"

namespace moert {

void VersionedStore::Attach(const PrefetchDriver& driver) {
  driver_ = driver;
  if (!driver.outlook.empty()) SetCapacity(pools_[0]->limit());
}

void VersionedStore::SetCapacity(int64_t slots) {
  const MoeModelSpec& model = source_->model();
  TakeCapacity(residency_->Capacity({&model, slots, driver_.outlook}), slots);
}

void VersionedStore::TakeCapacity(std::vector<int> capacity, int64_t slots) {
  const MoeModelSpec& model = source_->model();
  if (capacity.empty()) {
    capacity_ = UniformCapacity(model, slots);
    return;
  }
  int64_t sum = 0;
  bool valid = capacity.size() == model.layers.size();
  for (size_t l = 0; valid && l < capacity.size(); ++l) {
    valid = capacity[l] >= 0 && capacity[l] <= model.layers[l].num_experts;
    sum += capacity[l];
  }
  if (valid && sum <= slots) {
    capacity_ = std::move(capacity);
    return;
  }
  ++stats_.policy_fallbacks;
  capacity_ = UniformCapacity(model, slots);
}

void VersionedStore::RefreshCapacity(const PolicyContext& context) {
  const int64_t slots = pools_[0]->limit();
  std::vector<int> capacity =
      residency_->Capacity({&source_->model(), slots, driver_.outlook, &context});
  if (!capacity.empty()) TakeCapacity(std::move(capacity), slots);
}

absl::Status VersionedStore::SetSlots(int64_t slots, int64_t bytes) {
  Pump();
  const int64_t pinned = std::count_if(entries_.begin(), entries_.end(),
                                       [](const Entry& entry) { return entry.pins > 0; });
  if (pinned > slots) {
    return FailedPrecondition(
        "{} experts are in use by layer calls, leases or fetches, the new budget holds {}", pinned,
        slots);
  }
  std::vector<int> before = capacity_;
  absl::Cleanup keep = [&] { PutBack(std::move(before)); };
  SetCapacity(slots);
  PolicyContext context;
  context.model = &source_->model();
  while (pools_[0]->Over(slots, bytes)) {
    bool evicted = false;
    const int layers = Shares() ? 0 : static_cast<int>(held_.size());
    for (int layer = 0; layer < layers && !evicted; ++layer) {
      context.layer = layer;
      evicted = held_[layer] > capacity_[layer] &&
                EvictOneOf(layer, {layer, -1}, LoadReason::kDemand, context);
    }
    if (evicted || EvictOneOf(kAnyLayer, {0, -1}, LoadReason::kDemand, context)) continue;
    // Only experts in flight are left: they have to arrive before they can be evicted.
    if (!Wait()) break;
  }
  pools_[0]->SetByteLimit(bytes);
  pools_[0]->SetLimit(slots);
  std::move(keep).Cancel();
  return absl::OkStatus();
}

absl::StatusOr<SlotRegion> VersionedStore::Slots(int layer) const {
  const BlockPool& pool = *pools_[0];
  const int experts = source_->model().layers[layer].num_experts;
  const BlockRegion first = pool.Region(first_[layer]);
  bool good = first.base != nullptr;
  for (int e = 1; good && e < experts; ++e) {
    const BlockRegion region = pool.Region(first_[layer] + e);
    const std::byte* base = first.base + (first.blocks == 1 ? e * first.stride : 0);
    good = region.base == base && region.stride == first.stride;
  }
  if (!good) {
    return FailedPrecondition("layer {}: its slots have no constant stride: {}", layer,
                              first.base == nullptr
                                  ? "they come from the host's allocator, or the engine simulates"
                                  : "its experts differ in size");
  }
  return SlotRegion{first.base, first.stride, first.blocks == 1 ? experts : first.blocks};
}

int64_t VersionedStore::RoomFor(int layer, absl::Span<const int32_t> counts) const {
  const BlockPool& pool = *pools_[0];
  int64_t blocks = pool.limit(), bytes = pool.limit_bytes();
  for (size_t l = 0; l < first_.size(); ++l) {
    for (int e = 0; e < source_->model().layers[l].num_experts; ++e) {
      const Entry& entry = entries_[first_[l] + e];
      const bool wanted = static_cast<int>(l) == layer && counts[e] > 0;
      if (entry.pins == 0 || entry.active < 0 || wanted) continue;
      --blocks;
      bytes -= pool.bytes(entry.versions[entry.active].block);
    }
  }
  if (pool.alike()) return blocks;
  int64_t room = 0;
  for (int e = 0; e < source_->model().layers[layer].num_experts; ++e) {
    if (counts[e] == 0) continue;
    bytes -= pool.Region(first_[layer] + e).stride;
    if (bytes < 0) break;
    ++room;
  }
  return room;
}

}  // namespace moert
