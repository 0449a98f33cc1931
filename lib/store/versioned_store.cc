#include "store/versioned_store.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "transfer/link_pacer.h"

namespace moert {

// Entry, three bytes of visible state, places in the pools' lists, and a candidate.
const int64_t VersionedStore::kBytesPerExpert =
    sizeof(Entry) + 3 + 2 * sizeof(int32_t) + sizeof(VictimCandidate);

VersionedStore::VersionedStore(const ExpertSource* source, std::vector<ServedVersion> versions,
                               std::vector<std::unique_ptr<BlockPool>> pools,
                               std::unique_ptr<TransferQueue> transfers, CachePolicy* residency)
    : source_(source),
      versions_(std::move(versions)),
      pools_(std::move(pools)),
      transfers_(std::move(transfers)),
      residency_(residency) {
  int64_t total = 0;
  for (const MoeLayerSpec& layer : source->model().layers) {
    first_.push_back(total);
    total += layer.num_experts;
    token_blocks_ += ExpertsOfAToken(layer);
  }
  entries_.resize(total);
  resident_.resize(total, 0);
  usable_.resize(total, 0);
  in_flight_.resize(total, 0);
  held_.resize(source->model().num_layers(), 0);
  candidates_.reserve(total);
  SetCapacity(pools_[0]->limit());
}

VersionedStore::~VersionedStore() {
  // Reader threads write into the pools, so they must end before the pools are destroyed.
  transfers_.reset();
}

int64_t VersionedStore::OpenStep() {
  // Everything that may fail comes first.
  std::vector<ExpertKey> blocked;
  blocked.reserve(switching_.size());
  reclaiming_.reserve(reclaiming_.size() + switching_.size());
  const auto opened = open_epochs_.insert(epoch_ + (switching_.empty() ? 0 : 1));
  absl::Cleanup close = [&] { open_epochs_.erase(opened); };  // a policy may throw
  if (!switching_.empty()) ++epoch_;
  for (const ExpertKey key : switching_) {
    Entry& entry = At(key);
    if (entry.next < 0) continue;
    if (entry.previous >= 0) {
      // An older step still reads the version before the last switch: one switch at a time.
      blocked.push_back(key);
      continue;
    }
    entry.previous = entry.active;
    entry.drop_previous = entry.drop_next;
    entry.active = entry.next;
    entry.next = -1;
    entry.since = epoch_;
    entry.inserted = tick_;
    reclaiming_.push_back(key);
    UpdateVisible(key);
    if (versions_[entry.active].pool == 0) {
      residency_->Observe(LayerEvent::Inserted(key, /*prefetched=*/false));
    }
    if (versions_[entry.previous].pool == 0) residency_->Observe(LayerEvent::Evicted(key));
  }
  switching_ = std::move(blocked);
  Reclaim();
  std::move(close).Cancel();
  return epoch_;
}

void VersionedStore::CloseStep(int64_t epoch) {
  const auto it = open_epochs_.find(epoch);
  if (it != open_epochs_.end()) open_epochs_.erase(it);
  Reclaim();
}

void VersionedStore::Reclaim() {
  const auto unread = [&](ExpertKey key) {
    Entry& entry = At(key);
    const bool read = !open_epochs_.empty() && *open_epochs_.begin() < entry.since;
    if (read || entry.pins > 0) return false;
    if (entry.drop_previous) Drop(key, entry.previous);
    entry.previous = -1;
    return true;
  };
  reclaiming_.erase(std::remove_if(reclaiming_.begin(), reclaiming_.end(), unread),
                    reclaiming_.end());
}

absl::Status VersionedStore::LoadStandby() {
  constexpr int kLow = 1;
  const MoeModelSpec& model = source_->model();
  standby_.assign(entries_.size(), -1);
  for (int l = 0; l < model.num_layers(); ++l) {
    for (int e = 0; e < model.layers[l].num_experts; ++e) {
      if (!StartVersion({l, e}, kLow, LoadReason::kBackground)) return NoMemoryFor(l, e, pool(1));
    }
    while (Wait()) {
    }
    for (int e = 0; e < model.layers[l].num_experts; ++e) {
      const ExpertKey key{l, e};
      if (absl::Status status = TakeFailure(key); !status.ok()) return status;
      // A standby record is never evicted, so its entry is cleared for the cache of high versions.
      standby_[Index(key)] = At(key).versions[kLow].block;
      At(key) = Entry{};
      UpdateVisible(key);
      residency_->Observe(LayerEvent::Evicted(key));
    }
  }
  return absl::OkStatus();
}

ExpertHandle VersionedStore::Standby(ExpertKey key) const {
  if (standby_.empty()) return {};
  return {pools_[versions_[1].pool]->Address(standby_[Index(key)]), &layout(key, 1), 1};
}

bool VersionedStore::StartVersion(ExpertKey key, int version, LoadReason reason) {
  if (At(key).versions[version].state != VersionState::kAbsent) return true;
  const int32_t block = PoolOf(version).TakeFor(PoolIndex(key, version));
  if (block < 0) return false;
  SubmitOrGive(key, version, block, reason);
  At(key).failure = absl::OkStatus();
  return true;
}

bool VersionedStore::Switch(ExpertKey key, int version, bool drop_old) {
  Entry& entry = At(key);
  if (entry.versions[version].state != VersionState::kResident) return false;
  if (version == entry.active) {
    entry.next = -1;  // reverted before the boundary: nothing to switch
    return true;
  }
  // When switching back to a version that only waits for its last reader, that version is kept.
  if (entry.next < 0) switching_.push_back(key);
  if (version == entry.previous) entry.drop_previous = false;
  entry.next = static_cast<int8_t>(version);
  entry.drop_next = drop_old;
  return true;
}

}  // namespace moert
