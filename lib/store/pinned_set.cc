#include "store/pinned_set.h"

#include <algorithm>
#include <utility>

namespace moert {
namespace {

/// The most records that become known by one Turn.
constexpr size_t kMostChanges = 16;

}  // namespace

PinnedSet::PinnedSet(int32_t records, int32_t spare)
    : spare_(spare),
      place_of_(static_cast<size_t>(records), -1),
      uses_(static_cast<size_t>(records)) {}

void PinnedSet::AddPlace(std::byte* place, int64_t bytes) {
  const MutexLock lock(&mu_);
  spares_.push_back(static_cast<int32_t>(places_.size()));
  places_.push_back({place, bytes});
}

bool PinnedSet::Add(int32_t record, std::byte* place, int64_t bytes, bool known) {
  const MutexLock lock(&mu_);
  int32_t p = Returned(place);
  if (p < 0) {
    p = static_cast<int32_t>(places_.size());
    places_.push_back({place, bytes});
  }
  if (const int32_t other = place_of_[record]; other >= 0) {
    if (places_[other].state == State::kKnown) {
      places_[p].state = State::kEmpty;
      spares_.push_back(p);
      return false;
    }
    places_[other].record = -1;  // a job may read this copy to its end
    places_[other].state = State::kEmpty;
  }
  places_[p].record = record;
  places_[p].state = State::kKnown;
  place_of_[record] = p;
  ++known_;
  oldest_ = -1;
  if (!known) unsaid_.push_back({record, place});
  return true;
}

std::byte* PinnedSet::TakePlace(int64_t bytes) {
  const MutexLock lock(&mu_);
  if (std::ssize(spares_) <= spare_) return nullptr;
  const auto it = std::find_if(spares_.begin(), spares_.end(), [&](int32_t p) {
    mu_.AssertHeld();
    const Place& place = places_[p];
    return place.state == State::kEmpty && place.job != job_ && place.bytes >= bytes;
  });
  if (it == spares_.end()) return nullptr;
  const int32_t p = *it;
  spares_.erase(it);
  taken_.push_back(p);
  places_[p].state = State::kTaken;
  return places_[p].at;
}

int32_t PinnedSet::Returned(const std::byte* place) {
  const auto it = std::find_if(taken_.begin(), taken_.end(), [&](int32_t p) {
    mu_.AssertHeld();
    return places_[p].at == place;
  });
  if (it == taken_.end()) return -1;
  const int32_t p = *it;
  taken_.erase(it);
  return p;
}

void PinnedSet::GiveBack(std::byte* place) {
  const MutexLock lock(&mu_);
  const int32_t p = Returned(place);
  if (p < 0) return;
  places_[p].state = State::kEmpty;
  spares_.push_back(p);
}

void PinnedSet::UseNow(int32_t record) {
  Uses& uses = uses_[record];
  if (uses.last == turn_) return;
  uses.before = std::exchange(uses.last, turn_);
}

int32_t PinnedSet::PlaceFor(int64_t bytes) {
  int32_t best = -1;
  for (const int32_t p : spares_) {
    const Place& place = places_[p];
    if (place.state == State::kReading || place.job == job_ || place.bytes < bytes) continue;
    if (place.state == State::kEmpty) return p;
    if (best < 0 || Prospect(p) < Prospect(best)) best = p;
  }
  return best;
}

bool PinnedSet::Wanted(int32_t record) const {
  return wanted_ < kMostChanges && (std::ssize(spares_) > spare_ || uses_[record].before > oldest_);
}

PinnedSet::Found PinnedSet::Find(int32_t record, int64_t bytes, bool elsewhere) {
  const MutexLock lock(&mu_);
  UseNow(record);
  if (const int32_t p = place_of_[record]; p >= 0) {
    places_[p].job = job_;
    return {places_[p].at, true};
  }
  if (elsewhere && !Wanted(record)) return {};
  const int32_t p = PlaceFor(bytes);
  if (p < 0) return {};
  wanted_ += elsewhere ? 1 : 0;
  Place& place = places_[p];
  if (place.record >= 0) place_of_[place.record] = -1;
  place.record = record;
  place.state = State::kReading;
  place.job = job_;
  place_of_[record] = p;
  return {place.at, false};
}

void PinnedSet::EndRead(int32_t record, bool ok) {
  const MutexLock lock(&mu_);
  const int32_t p = place_of_[record];
  if (p < 0 || places_[p].state != State::kReading) return;
  places_[p].state = ok ? State::kRead : State::kEmpty;
  if (ok) return;
  places_[p].record = -1;
  place_of_[record] = -1;
}

void PinnedSet::EndJob() {
  const MutexLock lock(&mu_);
  ++job_;
}

void PinnedSet::Use(int32_t record) {
  const MutexLock lock(&mu_);
  UseNow(record);
}

std::vector<int32_t> PinnedSet::Candidates() const {
  std::vector<int32_t> candidates;
  for (const int32_t p : spares_) {
    if (places_[p].state == State::kRead) candidates.push_back(p);
  }
  std::sort(candidates.begin(), candidates.end(), [&](int32_t a, int32_t b) {
    mu_.AssertHeld();
    return Prospect(a) > Prospect(b);
  });
  return candidates;
}

std::vector<int32_t> PinnedSet::Victims(size_t most, absl::FunctionRef<bool(int32_t record)> held) {
  std::vector<int32_t> victims;
  oldest_ = turn_;
  for (int32_t p = 0; p < static_cast<int32_t>(places_.size()); ++p) {
    if (places_[p].state != State::kKnown) continue;
    oldest_ = std::min(oldest_, LastUse(p));
    if (!held(places_[p].record)) victims.push_back(p);
  }
  const auto end = victims.begin() + static_cast<int64_t>(std::min(most, victims.size()));
  std::partial_sort(victims.begin(), end, victims.end(), [&](int32_t a, int32_t b) {
    mu_.AssertHeld();
    return LastUse(a) < LastUse(b);
  });
  victims.erase(end, victims.end());
  return victims;
}

void PinnedSet::LetGo(int32_t place) {
  Place& left = places_[place];
  place_of_[left.record] = -1;
  left.record = -1;
  left.state = State::kLeaving;
  leaving_.push_back(place);
  --known_;
  ++swaps_;
}

std::vector<PinnedSet::Change> PinnedSet::Turn(absl::FunctionRef<bool(int32_t record)> held) {
  const MutexLock lock(&mu_);
  ++turn_;
  wanted_ = 0;
  std::vector<Change> changes;
  if (!leaving_.empty()) return changes;
  changes.swap(unsaid_);
  std::vector<int32_t> candidates = Candidates();
  candidates.resize(std::min(candidates.size(), kMostChanges));
  std::vector<int32_t> victims;
  size_t next = 0;  // index of the next victim
  for (const int32_t p : candidates) {
    if (static_cast<int32_t>(spares_.size()) <= spare_) {
      const int64_t before = uses_[places_[p].record].before;
      if (before <= oldest_) continue;
      if (victims.empty()) victims = Victims(kMostChanges, held);
      if (next == victims.size() || LastUse(victims[next]) >= before) continue;
      changes.push_back({places_[victims[next]].record, nullptr});
      LetGo(victims[next++]);
    }
    places_[p].state = State::kKnown;
    spares_.erase(std::find(spares_.begin(), spares_.end(), p));
    ++known_;
    changes.push_back({places_[p].record, places_[p].at});
  }
  return changes;
}

void PinnedSet::Left() {
  const MutexLock lock(&mu_);
  for (const int32_t p : leaving_) {
    places_[p].state = State::kEmpty;
    spares_.push_back(p);
  }
  leaving_.clear();
}

int64_t PinnedSet::lacking() const {
  const MutexLock lock(&mu_);
  return 2 * spare_ - std::ssize(spares_) - std::ssize(leaving_);
}

int64_t PinnedSet::known() const {
  const MutexLock lock(&mu_);
  return known_;
}

int64_t PinnedSet::swaps() const {
  const MutexLock lock(&mu_);
  return swaps_;
}

}  // namespace moert
