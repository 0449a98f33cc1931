#include "store/versioned_store.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "fmt/format.h"
#include "store/block_pool.h"
#include "transfer/link_estimate.h"
#include "transfer/transfer_queue.h"

namespace moert {

// Entry, the three visible bits, a place in the pools' lists, one in the candidates.
const int64_t VersionedStore::kBytesPerExpert =
    sizeof(Entry) + 3 + 2 * sizeof(int32_t) + sizeof(VictimCandidate);

VersionedStore::VersionedStore(const ExpertSource* source, std::vector<ServedVersion> versions,
                               std::vector<std::unique_ptr<BlockPool>> pools,
                               std::unique_ptr<TransferQueue> transfers, ResidencyPolicy* residency)
    : source_(source),
      versions_(std::move(versions)),
      pools_(std::move(pools)),
      transfers_(std::move(transfers)),
      residency_(residency),
      shared_(dynamic_cast<SharedSlots*>(residency)) {
  int64_t total = 0;
  for (const MoeLayerSpec& layer : source->model().layers) {
    first_.push_back(total);
    total += layer.num_experts;
  }
  entries_.resize(total);
  resident_.resize(total, 0);
  usable_.resize(total, 0);
  in_flight_.resize(total, 0);
  held_.resize(source->model().num_layers(), 0);
  candidates_.reserve(static_cast<size_t>(total));
  SetCapacity(pools_[0]->limit());
}

VersionedStore::~VersionedStore() {
  // Readers write into the pools: they must be gone before those are.
  transfers_.reset();
}

void VersionedStore::SetCapacity(int64_t slots) {
  const MoeModelSpec& model = source_->model();
  TakeCapacity(residency_->Capacity({&model, slots, outlook_}), slots);
}

void VersionedStore::TakeCapacity(std::vector<int> capacity, int64_t slots) {
  const MoeModelSpec& model = source_->model();
  if (capacity.empty()) {
    capacity_ = UniformCapacity(model, slots);
    return;
  }
  capacity_ = std::move(capacity);
  int64_t sum = 0;
  bool valid = capacity_.size() == model.layers.size();
  for (size_t l = 0; valid && l < capacity_.size(); ++l) {
    valid = capacity_[l] >= 0 && capacity_[l] <= model.layers[l].num_experts;
    sum += capacity_[l];
  }
  if (valid && sum <= slots) return;
  ++stats_.policy_fallbacks;
  capacity_ = UniformCapacity(model, slots);
}

void VersionedStore::RefreshCapacity(const PolicyContext& context) {
  const int64_t slots = pools_[0]->limit();
  std::vector<int> capacity = residency_->Capacity({&source_->model(), slots, outlook_, &context});
  if (!capacity.empty()) TakeCapacity(std::move(capacity), slots);
}

// --------------------------------------------------------------------------------------------------
// Steps.

int64_t VersionedStore::OpenStep() {
  // First what may fail.
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
      // An older step still reads the version before the last switch: one at a time.
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

// --------------------------------------------------------------------------------------------------
// Lookup.

ExpertHandle VersionedStore::Resolve(ExpertKey key, int64_t epoch) const {
  const Entry& entry = At(key);
  const int version = entry.previous >= 0 && epoch < entry.since ? entry.previous : entry.active;
  if (version < 0) return {};
  return {pools_[versions_[version].pool]->Address(entry.versions[version].block),
          &layout(key, version), version};
}

void VersionedStore::TakeChanges(std::vector<ExpertKey>* changed) {
  changed->insert(changed->end(), changed_.begin(), changed_.end());
  for (const ExpertKey key : changed_) At(key).changed = false;
  changed_.clear();
}

bool VersionedStore::Arriving(ExpertKey key) const {
  return At(key).active < 0 && in_flight_[Index(key)];
}

const RecordLayout& VersionedStore::layout(ExpertKey key, int version) const {
  return source_->layout(key.layer, key.expert, versions_[version].source_version);
}

LayerResidency VersionedStore::Layer(int layer) const {
  const int64_t first = first_[layer];
  const int64_t count = source_->model().layers[layer].num_experts;
  return {absl::MakeConstSpan(resident_).subspan(first, count),
          absl::MakeConstSpan(usable_).subspan(first, count),
          absl::MakeConstSpan(in_flight_).subspan(first, count), capacity_[layer]};
}

std::vector<Residency> VersionedStore::States(int layer) const {
  std::vector<Residency> states;
  for (int e = 0; e < source_->model().layers[layer].num_experts; ++e) {
    const int version = Latest({layer, e}).version;
    states.push_back(version > 0            ? Residency::kLow
                     : version == 0         ? Residency::kHigh
                     : Arriving({layer, e}) ? Residency::kArriving
                                            : Residency::kAbsent);
  }
  return states;
}

LookupResult VersionedStore::Lookup(ExpertKey key, int64_t epoch, int32_t tokens) {
  const int version = Resolve(key, epoch).version;
  if (version >= 0) return Count(key, version, tokens, 1);
  ++stats_.lookups;
  stats_.late += Arriving(key);
  return LookupResult::kMiss;
}

LookupResult VersionedStore::CountAnswered(ExpertKey key, int64_t slots, int64_t calls) {
  return Count(key, Latest(key).version, static_cast<int32_t>(slots / calls), calls);
}

LookupResult VersionedStore::Count(ExpertKey key, int version, int32_t tokens, int64_t calls) {
  stats_.lookups += calls;
  const bool prefetched = Touch(key, tokens);
  if (version > intended(key)) {
    stats_.low_answers += calls;
    return LookupResult::kLow;
  }
  stats_.hits_prefetched += prefetched;
  stats_.hits_resident += calls - prefetched;
  return LookupResult::kHit;
}

bool VersionedStore::Touch(ExpertKey key, int32_t tokens) {
  Entry& entry = At(key);
  const bool first_use_of_prefetch = entry.unused_prefetch;
  stats_.prefetch_useful += first_use_of_prefetch;
  entry.unused_prefetch = false;
  entry.last_used = tick_;
  ++entry.uses;
  entry.tokens = tokens;
  return first_use_of_prefetch;
}

void VersionedStore::UpdateVisible(ExpertKey key) {
  const int64_t i = Index(key);
  Entry& entry = entries_[i];
  if (tracking_ && !entry.changed) {
    entry.changed = true;
    changed_.push_back(key);
  }
  resident_[i] = entry.active == 0;
  usable_[i] = entry.active >= 0;
  in_flight_[i] = std::any_of(entry.versions.begin(), entry.versions.end(),
                              [](const Version& v) { return v.state == VersionState::kLoading; });
}

// --------------------------------------------------------------------------------------------------
// Movement of a cache.

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

void VersionedStore::SubmitOrGive(ExpertKey key, int version, int32_t block, LoadReason reason) {
  absl::Cleanup give = [&] { PoolOf(version).Give(block); };
  Submit(key, version, block, reason);
  std::move(give).Cancel();
}

void VersionedStore::Submit(ExpertKey key, int version, int32_t block, LoadReason reason) {
  BlockPool& pool = PoolOf(version);
  done_.reserve(done_.size() + static_cast<size_t>(loading_) + 1);  // its arrival cannot fail
  transfers_->Submit({key, version, versions_[version].source_version, reason,
                      absl::MakeSpan(pool.Address(block), pool.bytes(block)),
                      layout(key, version).bytes});
  // From here on nothing fails: it moves.
  At(key).versions[version] = {VersionState::kLoading, reason, block};
  ++loading_;
  if (versions_[version].pool == 0) ++held_[key.layer];
  UpdateVisible(key);
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
    const int donor = shared_->Donor(for_call);
    return donor < 0 ? -1 : TakeFrom(donor, incoming, reason, context, hint);
  };
  if (const int32_t block = take(demand); block >= 0 || !demand) return block;
  // What the call itself uses is still read. Where enough of it is in flight, that is worth waiting
  // for: the experts of other layers stay.
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
    if (reason != LoadReason::kDemand) return -1;  // several for one is no bargain
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
  const bool prefetch = reason != LoadReason::kDemand;  // nobody waits
  const bool dispensable = reason == LoadReason::kBackground || (prefetch && cpu_offload_);
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
  const bool changed = tracking_;  // Drop notes it
  ++stats_.evictions;
  entry.active = -1;
  Drop(key, version);
  entry = Entry{};
  entry.intended = intended;
  entry.changed = changed;
  residency_->Observe(LayerEvent::Evicted(key));
}

void VersionedStore::Drop(ExpertKey key, int version) {
  Version& v = At(key).versions[version];
  PoolOf(version).Give(v.block);
  if (versions_[version].pool == 0) --held_[key.layer];
  v = Version{};
  UpdateVisible(key);
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

void VersionedStore::Pump() {
  transfers_->Poll(&done_);
  Publish();
}

bool VersionedStore::Wait() {
  if (!transfers_->Wait(&done_)) return false;
  Publish();
  return true;
}

void VersionedStore::Publish() {
  for (size_t i = 0; i < done_.size(); ++i) {
    // What a policy or a trace throws comes when the states are right; the others are published by
    // the next call.
    absl::Cleanup forget = [&] {
      done_.erase(done_.begin(), done_.begin() + static_cast<ptrdiff_t>(i) + 1);
    };
    PublishOne(done_[i]);
    std::move(forget).Cancel();
  }
  done_.clear();
}

void VersionedStore::PublishOne(const TransferDone& done) {
  --loading_;
  Entry& entry = At(done.key);
  Version& version = entry.versions[done.version];
  const bool prefetched = entry.unused_prefetch;
  const bool background = version.reason == LoadReason::kBackground;
  const bool reloading = std::exchange(entry.reloading, false);
  bool inserted = false;
  if (!done.status.ok()) {
    entry.unused_prefetch = false;
    entry.failure = done.status;
    Drop(done.key, done.version);
  } else {
    stats_.bytes_loaded += done.bytes;
    version.state = VersionState::kResident;
    if (entry.active < 0) {
      stats_.low_loads += done.version > 0;
      if (prefetched) {
        stats_.prefetch_bytes += done.bytes;
      } else {
        ++stats_.loads;
      }
      entry.active = static_cast<int8_t>(done.version);
      entry.inserted = tick_;
      entry.queued_ns = done.started_ns - done.submitted_ns;
      entry.moved_ns = done.finished_ns - done.started_ns;
      inserted = !reloading;
    }
    UpdateVisible(done.key);
  }
  if (link_ != nullptr) link_->Observe(done.bytes, done.started_ns, done.finished_ns);
  if (inserted) residency_->Observe(LayerEvent::Inserted(done.key, prefetched));
  if (!done.status.ok() && reloading) residency_->Observe(LayerEvent::Evicted(done.key));
  if (trace_ != nullptr) {
    trace_->OnSpan({TimelineTrack::kLink,
                    prefetched   ? "prefetch"
                    : background ? "background"
                                 : "load",
                    done.started_ns, done.finished_ns, -1, done.key.layer, done.key.expert,
                    done.bytes});
  }
}

absl::Status VersionedStore::TakeFailure(ExpertKey key) {
  absl::Status failure = std::move(At(key).failure);
  At(key).failure = absl::OkStatus();
  return failure;
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
  if (versions_[version].pool == 0) --held_[key.layer];  // Submit counted it again
  entry.active = -1;
  entry.reloading = true;
  entry.failure = absl::OkStatus();
  ++stats_.upgrades;
  UpdateVisible(key);
  return true;
}

void VersionedStore::EndLayerCall(const PolicyContext& context) {
  const int layer = context.layer;
  while (!Shares() && held_[layer] > capacity_[layer] &&
         EvictOneOf(layer, {layer, -1}, LoadReason::kDemand, context)) {
  }
}

// --------------------------------------------------------------------------------------------------
// Low versions that stand by.

absl::Status VersionedStore::LoadStandby() {
  constexpr int kLow = 1;
  const MoeModelSpec& model = source_->model();
  standby_.assign(entries_.size(), -1);
  for (int l = 0; l < model.num_layers(); ++l) {
    for (int e = 0; e < model.layers[l].num_experts; ++e) {
      if (!StartVersion({l, e}, kLow, LoadReason::kBackground)) {
        return absl::ResourceExhaustedError(
            fmt::format("no memory for layer {} expert {} within the budget", l, e));
      }
    }
    while (Wait()) {
    }
    for (int e = 0; e < model.layers[l].num_experts; ++e) {
      const ExpertKey key{l, e};
      if (absl::Status status = TakeFailure(key); !status.ok()) return status;
      // It leaves the table of what comes and goes.
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

void VersionedStore::CountLowAnswer(ExpertKey key) {
  ++stats_.low_answers;
  stats_.late -= Arriving(key);
}

void VersionedStore::DropLow(ExpertKey key) {
  if (At(key).active > 0 && At(key).pins == 0) Evict(key);
}

// --------------------------------------------------------------------------------------------------
// Movement between versions.

bool VersionedStore::StartVersion(ExpertKey key, int version, LoadReason reason) {
  if (At(key).versions[version].state != VersionState::kAbsent) return true;
  const int32_t block = PoolOf(version).TakeFor(Index(key));
  if (block < 0) return false;
  SubmitOrGive(key, version, block, reason);
  At(key).failure = absl::OkStatus();
  return true;
}

bool VersionedStore::Switch(ExpertKey key, int version, bool drop_old) {
  Entry& entry = At(key);
  if (entry.versions[version].state != VersionState::kResident) return false;
  if (version == entry.active) {
    entry.next = -1;  // back before the boundary: nothing to switch
    return true;
  }
  // Back to a version that only waits for its last reader: it is kept.
  if (entry.next < 0) switching_.push_back(key);
  if (version == entry.previous) entry.drop_previous = false;
  entry.next = static_cast<int8_t>(version);
  entry.drop_next = drop_old;
  return true;
}

// --------------------------------------------------------------------------------------------------
// Size.

absl::Status VersionedStore::SetSlots(int64_t slots, int64_t bytes) {
  Pump();
  const int64_t pinned = std::count_if(entries_.begin(), entries_.end(),
                                       [](const Entry& entry) { return entry.pins > 0; });
  if (pinned > slots) {
    return absl::FailedPreconditionError(fmt::format(
        "{} experts are in use by open layer calls, the new budget holds {}", pinned, slots));
  }
  const std::vector<int> before = capacity_;
  absl::Cleanup keep = [&] { capacity_ = before; };  // as large as it is: no allocation
  SetCapacity(slots);
  PolicyContext context;
  context.model = &source_->model();
  while (pools_[0]->Over(slots, bytes)) {
    bool evicted = false;
    const int layers = !Shares() ? static_cast<int>(held_.size()) : 0;
    for (int layer = 0; layer < layers && !evicted; ++layer) {
      context.layer = layer;
      evicted = held_[layer] > capacity_[layer] &&
                EvictOneOf(layer, {layer, -1}, LoadReason::kDemand, context);
    }
    if (evicted || EvictOneOf(kAnyLayer, {0, -1}, LoadReason::kDemand, context)) continue;
    // Only transfers in flight are left: they land, then leave.
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
    return absl::FailedPreconditionError(fmt::format(
        "layer {}: its slots have no constant stride: {}", layer,
        first.base == nullptr ? "they come from the host's allocator, or the engine simulates"
                              : "its experts differ in size"));
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
