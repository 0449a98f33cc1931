// VersionedStore: lending blocks to a device, and taking them back.
#include <algorithm>
#include <vector>

#include "store/block_pool.h"
#include "store/versioned_store.h"

namespace moert {

bool VersionedStore::Lend(std::vector<LentLayer>* layers) {
  const bool pinned = std::any_of(entries_.begin(), entries_.end(),
                                  [](const Entry& entry) { return entry.pins > 0; });
  if (pinned) return false;
  while (Wait()) {
  }
  const MoeModelSpec& model = source_->model();
  if (num_versions() > 1) DropAllLow();
  FreeLeast();
  layers->assign(model.layers.size(), {});
  PolicyContext context;
  context.model = &model;
  for (context.layer = 0; context.layer < model.num_layers(); ++context.layer) {
    LentLayer& loan = (*layers)[context.layer];
    loan.tick = tick_;
    for (int e = 0; e < model.layers[context.layer].num_experts; ++e) {
      const Entry& entry = At({context.layer, e});
      if (entry.active < 0) continue;
      // The age of an expert that was not used yet counts from its insertion.
      loan.slots.push_back({entry.versions[entry.active].block, e,
                            std::max(entry.last_used, entry.inserted), entry.tokens});
    }
  }
  const auto lend_up_to = [&](int l, int most) {
    std::vector<LentSlot>& slots = (*layers)[l].slots;
    while (static_cast<int>(slots.size()) < most && LendFree(l, &slots)) {
    }
  };
  for (int l = 0; l < model.num_layers(); ++l) lend_up_to(l, LeastLent(l));
  for (int l = 0; l < model.num_layers(); ++l) lend_up_to(l, capacity_[l]);
  DealFree(layers);
  LendUse(layers);
  return true;
}

void VersionedStore::DropAllLow() {
  const MoeModelSpec& model = source_->model();
  for (int l = 0; l < model.num_layers(); ++l) {
    for (int e = 0; e < model.layers[l].num_experts; ++e) DropLow({l, e});
  }
}

int VersionedStore::LeastLent(int layer) const {
  const bool for_all = token_blocks_ <= pools_[0]->limit();
  return for_all ? ExpertsOfAToken(source_->model().layers[layer]) : 0;
}

void VersionedStore::FreeLeast() {
  PolicyContext context;
  context.model = &source_->model();
  const int layers = context.model->num_layers();
  for (context.layer = 0; context.layer < layers; ++context.layer) {
    EndLayerCall(context);  // gives blocks beyond the layer's capacity back
  }
  int64_t lack = pools_[0]->taken() - pools_[0]->limit();
  for (int l = 0; l < layers; ++l) lack += std::max(0, LeastLent(l) - held_[l]);
  const auto surplus = [&](int l) { return held_[l] - LeastLent(l); };
  for (; lack > 0; --lack) {
    context.layer = 0;
    for (int l = 1; l < layers; ++l) {
      if (surplus(l) > surplus(context.layer)) context.layer = l;
    }
    const ExpertKey nobody{context.layer, -1};
    if (!EvictOneOf(context.layer, nobody, LoadReason::kDemand, context)) return;
  }
}

bool VersionedStore::LendFree(int layer, std::vector<LentSlot>* slots) {
  const int32_t block = pools_[0]->TakeFor(Index({layer, 0}));
  if (block < 0) return false;
  slots->push_back({block});
  return true;
}

void VersionedStore::DealFree(std::vector<LentLayer>* layers) {
  for (bool dealt = true; dealt;) {
    dealt = false;
    for (size_t l = 0; l < layers->size(); ++l) {
      std::vector<LentSlot>& slots = (*layers)[l].slots;
      if (std::ssize(slots) == source_->model().layers[l].num_experts) continue;
      dealt = LendFree(static_cast<int>(l), &slots) || dealt;
    }
  }
}

void VersionedStore::LendUse(std::vector<LentLayer>* layers) const {
  for (size_t l = 0; l < layers->size(); ++l) {
    residency_->LendUse(static_cast<int>(l), source_->model().layers[l].num_experts, &(*layers)[l]);
  }
}

void VersionedStore::TakeBack(absl::Span<const LentLayer> layers) {
  for (int l = 0; l < static_cast<int>(layers.size()); ++l) {
    const LentLayer& loan = layers[l];
    tick_ = std::max(tick_, loan.tick);
    std::vector<uint8_t> there(source_->model().layers[l].num_experts, 0);
    for (const LentSlot& slot : loan.slots) {
      if (slot.expert >= 0) there[slot.expert] = 1;
    }
    for (int e = 0; e < static_cast<int>(there.size()); ++e) {
      if (there[e] == 0) ForgetLent({l, e});
    }
    held_[l] = 0;
    for (const LentSlot& slot : loan.slots) TakeBackSlot(l, slot);
    residency_->ResumeUse(l, loan);
  }
}

void VersionedStore::ForgetLent(ExpertKey key) {
  Entry& entry = At(key);
  if (entry.active < 0) return;
  const int8_t intended = entry.intended;
  const bool changed = entry.changed;
  entry = Entry{};
  entry.intended = intended;
  entry.changed = changed;
  UpdateVisible(key);
  residency_->Observe(LayerEvent::Evicted(key));
}

void VersionedStore::TakeBackSlot(int layer, const LentSlot& slot) {
  if (slot.expert < 0) {
    pools_[0]->Give(slot.block);
    return;
  }
  const ExpertKey key{layer, slot.expert};
  Entry& entry = At(key);
  const bool entered = entry.active < 0;
  const bool used = entered || slot.last_used > std::max(entry.last_used, entry.inserted);
  entry.versions[0] = {VersionState::kResident, LoadReason::kDemand, slot.block};
  entry.active = 0;
  ++held_[layer];
  if (used) {
    if (entered) entry.inserted = slot.last_used;
    entry.last_used = slot.last_used;
    entry.tokens = slot.tokens;
    entry.unused_prefetch = false;
    ++entry.uses;
  }
  UpdateVisible(key);
  if (entered) residency_->Observe(LayerEvent::Inserted(key, /*prefetched=*/false));
}

void VersionedStore::CountServed(const ServedCount& count) {
  stats_.lookups += count.lookups;
  stats_.hits_resident += count.hits;
  stats_.loads += count.loads;
  stats_.low_loads += count.low_loads;
  stats_.low_answers += count.low_answers;
  stats_.bytes_loaded += count.bytes + count.brought_bytes;
  stats_.evictions += count.evictions;
  stats_.hits_prefetched += count.arrived;
  stats_.late += count.late + count.late_fills;
  stats_.prefetch_useful += count.arrived + count.late;
  stats_.prefetch_bytes += count.brought_bytes;
}

}  // namespace moert
