#include "moert/expert_store.h"

#include <algorithm>

#include "fmt/format.h"
#include "store/block_pool.h"
#include "store/transfer_queue.h"

namespace moert {

// Entry, the two visible bits, a place in the pool's lists, one in the candidates.
const int64_t ExpertStore::kBytesPerExpert =
    sizeof(Entry) + 2 + 2 * sizeof(int32_t) + sizeof(VictimCandidate);

ExpertStore::ExpertStore(const ExpertSource* source, int version, std::unique_ptr<BlockPool> pool,
                         std::unique_ptr<TransferQueue> transfers, ResidencyPolicy* residency,
                         EngineStats* stats)
    : source_(source),
      version_(version),
      pool_(std::move(pool)),
      transfers_(std::move(transfers)),
      residency_(residency),
      stats_(stats),
      slots_(pool_->limit()) {
  int64_t total = 0;
  for (const MoeLayerSpec& layer : source->model().layers) {
    first_.push_back(total);
    total += layer.num_experts;
  }
  entries_.resize(total);
  resident_.resize(total, 0);
  in_flight_.resize(total, 0);
  held_.resize(source->model().num_layers(), 0);
  SetCapacity(slots_);
}

ExpertStore::~ExpertStore() {
  // Readers write into the pool: they must be gone before it is.
  transfers_.reset();
}

void ExpertStore::SetCapacity(int64_t slots) {
  const MoeModelSpec& model = source_->model();
  capacity_ = residency_->Capacity({&model, slots});
  int64_t sum = 0;
  bool valid = capacity_.size() == model.layers.size();
  for (size_t l = 0; valid && l < capacity_.size(); ++l) {
    valid = capacity_[l] >= 0 && capacity_[l] <= model.layers[l].num_experts;
    sum += capacity_[l];
  }
  if (valid && sum <= slots) return;
  ++stats_->policy_fallbacks;
  capacity_ = UniformCapacity(model, slots);
}

const std::byte* ExpertStore::Resident(ExpertKey key) const {
  const Entry& entry = At(key);
  return entry.state == VersionState::kResident ? pool_->Address(entry.block) : nullptr;
}

bool ExpertStore::InFlight(ExpertKey key) const { return At(key).state == VersionState::kLoading; }

const RecordLayout& ExpertStore::layout(ExpertKey key) const {
  return source_->layout(key.layer, key.expert, version_);
}

LayerResidency ExpertStore::Layer(int layer) const {
  const int64_t first = first_[layer];
  const int64_t count = source_->model().layers[layer].num_experts;
  return {absl::MakeConstSpan(resident_).subspan(first, count),
          absl::MakeConstSpan(in_flight_).subspan(first, count), capacity_[layer]};
}

void ExpertStore::Pin(ExpertKey key) { ++At(key).pins; }
void ExpertStore::Unpin(ExpertKey key) { --At(key).pins; }

bool ExpertStore::Touch(ExpertKey key) {
  Entry& entry = At(key);
  const bool first_use_of_prefetch = entry.unused_prefetch;
  entry.unused_prefetch = false;
  entry.last_used = tick_;
  ++entry.uses;
  return first_use_of_prefetch;
}

void ExpertStore::SetVisible(ExpertKey key, bool resident, bool in_flight) {
  resident_[Index(key)] = resident;
  in_flight_[Index(key)] = in_flight;
}

bool ExpertStore::StartLoad(ExpertKey key, LoadReason reason, const PolicyContext& context) {
  Entry& entry = At(key);
  if (entry.state == VersionState::kResident) return true;
  if (entry.state == VersionState::kLoading) {
    if (reason < entry.reason) {
      transfers_->Raise(key, version_, reason);
      entry.reason = reason;
    }
    return true;
  }
  const int32_t block = MakeRoom(key, reason, context);
  if (block < 0) return false;
  entry.state = VersionState::kLoading;
  entry.reason = reason;
  entry.unused_prefetch = reason == LoadReason::kPrefetch;
  entry.block = block;
  entry.failure = absl::OkStatus();
  ++held_[key.layer];
  SetVisible(key, false, true);
  transfers_->Submit({key, version_, reason,
                      absl::MakeSpan(pool_->Address(block), pool_->block_bytes()),
                      layout(key).bytes});
  return true;
}

int32_t ExpertStore::MakeRoom(ExpertKey incoming, LoadReason reason, const PolicyContext& context) {
  // A layer under its capacity takes a free block, one at its capacity replaces one of its own.
  // When that fails (a layer with no slots, or all of them pinned) it borrows: what is free, then
  // from layers over their capacity, then from anybody. What it borrows it returns when its call
  // ends.
  if (held_[incoming.layer] >= capacity_[incoming.layer] &&
      EvictOneOf(incoming.layer, incoming, reason, context)) {
    return pool_->Take();
  }
  if (const int32_t block = pool_->Take(); block >= 0) return block;
  for (int layer = 0; layer < static_cast<int>(held_.size()); ++layer) {
    if (held_[layer] > capacity_[layer] && EvictOneOf(layer, incoming, reason, context)) {
      return pool_->Take();
    }
  }
  return EvictOneOf(kAnyLayer, incoming, reason, context) ? pool_->Take() : -1;
}

bool ExpertStore::EvictOneOf(int layer, ExpertKey incoming, LoadReason reason,
                             const PolicyContext& context) {
  candidates_.clear();
  const int first = layer == kAnyLayer ? 0 : layer;
  const int end = layer == kAnyLayer ? source_->model().num_layers() : layer + 1;
  for (int l = first; l < end; ++l) {
    for (int e = 0; e < source_->model().layers[l].num_experts; ++e) {
      const Entry& entry = At({l, e});
      if (entry.state != VersionState::kResident || entry.pins > 0) continue;
      candidates_.push_back(
          {{l, e}, entry.last_used, entry.inserted, entry.uses, entry.unused_prefetch});
    }
  }
  if (candidates_.empty()) return false;
  const bool prefetch = reason == LoadReason::kPrefetch;
  int victim = residency_->Victim({context, incoming, prefetch, candidates_});
  if (victim < 0 && prefetch) return false;
  if (victim < 0 || victim >= static_cast<int>(candidates_.size())) {
    ++stats_->policy_fallbacks;
    victim = LeastRecentlyUsed(candidates_);
  }
  Evict(candidates_[victim].key);
  return true;
}

void ExpertStore::Evict(ExpertKey key) {
  ++stats_->evictions;
  --resident_count_;
  Drop(key);
  residency_->OnEvict(key);
}

void ExpertStore::Drop(ExpertKey key) {
  Entry& entry = At(key);
  SetVisible(key, false, false);
  pool_->Give(entry.block);
  --held_[key.layer];
  entry = Entry{};
}

void ExpertStore::CancelPrefetches(int layer, absl::Span<const int32_t> counts) {
  for (int e = 0; e < source_->model().layers[layer].num_experts; ++e) {
    const Entry& entry = At({layer, e});
    if (counts[e] > 0) continue;
    if (entry.state != VersionState::kLoading || entry.reason != LoadReason::kPrefetch) continue;
    if (transfers_->Cancel({layer, e}, version_)) Drop({layer, e});
  }
}

void ExpertStore::Pump() {
  transfers_->Poll(&done_);
  Publish();
}

bool ExpertStore::Wait() {
  if (!transfers_->Wait(&done_)) return false;
  Publish();
  return true;
}

void ExpertStore::Publish() {
  for (const TransferDone& done : done_) {
    Entry& entry = At(done.key);
    if (!done.status.ok()) {
      Drop(done.key);
      entry.failure = done.status;
      continue;
    }
    stats_->bytes_loaded += done.bytes;
    if (entry.unused_prefetch) {
      stats_->prefetch_bytes += done.bytes;
    } else {
      ++stats_->loads;
    }
    entry.state = VersionState::kResident;
    entry.inserted = tick_;
    entry.queued_ns = done.started_ns - done.submitted_ns;
    entry.moved_ns = done.finished_ns - done.started_ns;
    ++resident_count_;
    SetVisible(done.key, true, false);
    residency_->OnInsert(done.key, entry.unused_prefetch);
  }
  done_.clear();
}

absl::Status ExpertStore::TakeFailure(ExpertKey key) {
  absl::Status failure = std::move(At(key).failure);
  At(key).failure = absl::OkStatus();
  return failure;
}

void ExpertStore::EndLayerCall(const PolicyContext& context) {
  const int layer = context.layer;
  while (held_[layer] > capacity_[layer] &&
         EvictOneOf(layer, {layer, -1}, LoadReason::kDemand, context)) {
  }
}

absl::Status ExpertStore::SetSlots(int64_t slots) {
  Pump();
  int64_t pinned = 0;
  for (const Entry& entry : entries_) pinned += entry.pins > 0;
  if (pinned > slots) {
    return absl::FailedPreconditionError(fmt::format(
        "{} experts are in use by open layer calls, the new budget holds {}", pinned, slots));
  }
  SetCapacity(slots);
  PolicyContext context;
  context.model = &source_->model();
  while (pool_->taken() > slots) {
    bool evicted = false;
    for (int layer = 0; layer < static_cast<int>(held_.size()) && !evicted; ++layer) {
      context.layer = layer;
      evicted = held_[layer] > capacity_[layer] &&
                EvictOneOf(layer, {layer, -1}, LoadReason::kDemand, context);
    }
    if (evicted || EvictOneOf(kAnyLayer, {0, -1}, LoadReason::kDemand, context)) continue;
    // Only transfers in flight are left: they land, then leave.
    if (!Wait()) break;
  }
  slots_ = slots;
  pool_->SetLimit(slots);
  return absl::OkStatus();
}

}  // namespace moert
