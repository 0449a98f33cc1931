// VersionedStore as a cache: loads and evictions.
#include "store/block_pool.h"
#include "store/versioned_store.h"
#include "transfer/transfer_queue.h"

namespace moert {

bool VersionedStore::StartLoad(ExpertKey key, int version, LoadReason reason,
                               const PolicyContext& context, const LoadHint& hint) {
  Entry& entry = At(key);
  if (entry.active >= 0) return true;
  for (int v = 0; v < num_versions(); ++v) {
    Version& other = entry.versions[v];
    if (other.state != VersionState::kLoading) continue;
    if (reason < other.reason) {
      transfers_->Raise(key, v, reason);
      other.reason = reason;
    }
    return true;
  }
  const int32_t block = MakeRoom(key, versions_[version].pool, reason, context, hint);
  if (block < 0) return false;
  SubmitOrGive(key, version, block, reason);
  entry.failure = absl::OkStatus();
  entry.unused_prefetch = reason == LoadReason::kPrefetch;
  return true;
}

int32_t VersionedStore::MakeRoom(ExpertKey incoming, int pool, LoadReason reason,
                                 const PolicyContext& context, const LoadHint& hint) {
  BlockPool& blocks = *pools_[pool];
  if (pool != 0) return blocks.TakeFor(Index(incoming));
  if (Shares()) return MakeSharedRoom(incoming, reason, context, hint);
  if (held_[incoming.layer] >= capacity_[incoming.layer] && !TransientFree()) {
    const int32_t block = TakeFrom(incoming.layer, incoming, reason, context, hint);
    if (block >= 0) return block;
  }
  if (const int32_t block = blocks.TakeFor(Index(incoming)); block >= 0) return block;
  for (int layer = 0; layer < static_cast<int>(held_.size()); ++layer) {
    while (layer != incoming.layer && held_[layer] > capacity_[layer] &&
           EvictOneOf(layer, incoming, reason, context, hint)) {
      const int32_t block = blocks.TakeFor(Index(incoming));
      if (block >= 0 || blocks.alike()) return block;
    }
  }
  if (hint.can_wait || reason != LoadReason::kDemand) return -1;
  return TakeFrom(kAnyLayer, incoming, reason, context);
}

int32_t VersionedStore::MakeSharedRoom(ExpertKey incoming, LoadReason reason,
                                       const PolicyContext& context, const LoadHint& hint) {
  if (const int32_t block = pools_[0]->TakeFor(Index(incoming)); block >= 0) return block;
  const bool demand = reason == LoadReason::kDemand;
  const auto take = [&](bool for_call) {
    const int donor = residency_->Donor(for_call);
    return donor < 0 ? -1 : TakeFrom(donor, incoming, reason, context, hint);
  };
  if (const int32_t block = take(demand); block >= 0 || !demand) return block;
  // Experts that the call itself uses are still read. If enough loads of the call are in flight, it
  // is better to wait for them than to evict experts of other layers.
  if (!hint.spare_popular) {
    if (const int32_t block = take(false); block >= 0) return block;
  }
  return hint.can_wait ? -1 : TakeFrom(kAnyLayer, incoming, reason, context);
}

int32_t VersionedStore::TakeFrom(int layer, ExpertKey incoming, LoadReason reason,
                                 const PolicyContext& context, const LoadHint& hint) {
  while (EvictOneOf(layer, incoming, reason, context, hint)) {
    const int32_t block = pools_[0]->TakeFor(Index(incoming));
    if (block >= 0 || pools_[0]->alike()) return block;
    if (reason != LoadReason::kDemand) return -1;  // not worth evicting several experts for one
  }
  return -1;
}

bool VersionedStore::TransientFree() const {
  int64_t left = pools_[0]->limit();
  for (size_t l = 0; l < held_.size(); ++l) left -= std::max(capacity_[l], held_[l]);
  return left > 0;
}

ExpertKey VersionedStore::ChooseVictim(int layer, ExpertKey incoming, LoadReason reason,
                                       const PolicyContext& context, const LoadHint& hint) {
  constexpr ExpertKey kNobody{0, -1};
  candidates_.clear();
  const int first = layer < 0 ? 0 : layer;
  const int end = layer < 0 ? source_->model().num_layers() : layer + 1;
  for (int l = first; l < end; ++l) {
    if (held_[l] == 0) continue;
    for (int e = 0; e < source_->model().layers[l].num_experts; ++e) {
      const Entry& entry = At({l, e});
      if (entry.active < 0 || versions_[entry.active].pool != 0 || entry.pins > 0 ||
          entry.next >= 0 || entry.previous >= 0) {
        continue;
      }
      candidates_.push_back({{l, e},
                             entry.last_used,
                             entry.inserted,
                             entry.uses,
                             entry.tokens,
                             entry.unused_prefetch});
    }
  }
  if (candidates_.empty()) return kNobody;
  const bool prefetch = reason != LoadReason::kDemand;  // no call waits for it
  const bool dispensable = reason == LoadReason::kBackground || (prefetch && driver_.cpu_offload);
  int victim = residency_->Victim(
      {context, incoming, prefetch, candidates_, dispensable, hint.probability, hint.hidden});
  if (victim < 0 && prefetch) return kNobody;
  if (victim < 0 || victim >= static_cast<int>(candidates_.size())) {
    ++stats_.policy_fallbacks;
    victim = LeastRecentlyUsed(candidates_);
  }
  return candidates_[victim].key;
}

bool VersionedStore::EvictOneOf(int layer, ExpertKey incoming, LoadReason reason,
                                const PolicyContext& context, const LoadHint& hint) {
  const ExpertKey victim = ChooseVictim(layer, incoming, reason, context, hint);
  if (victim.expert < 0) return false;
  const Entry& entry = At(victim);
  if (hint.spare_popular && entry.last_used == tick_ && entry.tokens > hint.tokens) return false;
  Evict(victim);
  return true;
}

void VersionedStore::Evict(ExpertKey key) {
  Entry& entry = At(key);
  const int version = entry.active;
  const int8_t intended = entry.intended;
  const bool changed = tracking_;  // Drop records the change
  ++stats_.evictions;
  entry.active = -1;
  Drop(key, version);
  entry = Entry{};
  entry.intended = intended;
  entry.changed = changed;
  residency_->Observe(LayerEvent::Evicted(key));
}

int64_t VersionedStore::CancelPrefetches(int layer, absl::Span<const int32_t> counts) {
  int64_t cancelled = 0;
  for (int e = 0; e < source_->model().layers[layer].num_experts; ++e) {
    const ExpertKey key{layer, e};
    if (counts[e] > 0 || !Arriving(key)) continue;
    for (int v = 0; v < num_versions(); ++v) {
      const Version& version = At(key).versions[v];
      if (version.state == VersionState::kLoading && version.reason == LoadReason::kPrefetch &&
          transfers_->Cancel(key, v)) {
        --loading_;
        At(key).unused_prefetch = false;
        Drop(key, v);
        ++cancelled;
      }
    }
  }
  return cancelled;
}

void VersionedStore::EndLayerCall(const PolicyContext& context) {
  const int layer = context.layer;
  while (!Shares() && held_[layer] > capacity_[layer] &&
         EvictOneOf(layer, {layer, -1}, LoadReason::kDemand, context)) {
  }
}

bool VersionedStore::Reload(ExpertKey key, int version, LoadReason reason) {
  Entry& entry = At(key);
  if (entry.active < 0 || entry.active == version || entry.pins > 0 || entry.next >= 0 ||
      entry.previous >= 0 || versions_[entry.active].pool != versions_[version].pool) {
    return false;
  }
  const int8_t old = entry.active;
  Submit(key, version, entry.versions[old].block, reason);
  entry.versions[old] = Version{};
  if (versions_[version].pool == 0) --held_[key.layer];  // Submit counted the block again
  entry.active = -1;
  entry.reloading = true;
  entry.failure = absl::OkStatus();
  ++stats_.upgrades;
  UpdateVisible(key);
  return true;
}

void VersionedStore::DropLow(ExpertKey key) {
  if (At(key).active > 0 && At(key).pins == 0) Evict(key);
}

}  // namespace moert
