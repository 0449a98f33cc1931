// VersionedStore: what a step sees of the experts, and what it counts.
#include <algorithm>
#include <vector>

#include "store/block_pool.h"
#include "store/versioned_store.h"

namespace moert {

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

void VersionedStore::CountLowAnswer(ExpertKey key) {
  ++stats_.low_answers;
  stats_.late -= Arriving(key);
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

}  // namespace moert
