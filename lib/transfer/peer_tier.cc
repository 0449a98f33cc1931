#include "transfer/peer_tier.h"

#include <algorithm>
#include <limits>
#include <new>

#include "absl/status/status.h"

namespace moert {

absl::StatusOr<PeerTier::Holder> PeerTier::Join(const void* source, int device) {
  const MutexLock lock(&mu_);
  if (here_ > 0 && source != source_) {
    return absl::InvalidArgumentError(
        "peers: engines of a peer tier are over one source, and have no shards");
  }
  source_ = source;
  ++here_;
  Member& member = members_.emplace_back();
  member.here = true;
  member.device = device;
  return static_cast<Holder>(members_.size() - 1);
}

std::vector<int> PeerTier::Unjudged(int device) const {
  const MutexLock lock(&mu_);
  std::vector<int> devices;
  for (const Member& member : members_) {
    if (!member.here || member.device == device || pays_.contains({member.device, device})) {
      continue;
    }
    if (std::find(devices.begin(), devices.end(), member.device) == devices.end()) {
      devices.push_back(member.device);
    }
  }
  return devices;
}

void PeerTier::Judge(int from, int to, bool pays) {
  const MutexLock lock(&mu_);
  pays_[{from, to}] = pays;
}

void PeerTier::Leave(Holder holder, absl::FunctionRef<void(Copy)> wait) {
  const MutexLock lock(&mu_);
  WithdrawLocked(holder, {0, std::numeric_limits<Address>::max()}, wait);
  std::erase_if(readings_, [&](const Reading& reading) { return reading.by == holder; });
  members_[holder].here = false;
  --here_;
}

void PeerTier::Publish(Holder holder, int64_t record, const std::byte* at, int64_t bytes) {
  const MutexLock lock(&mu_);
  Member& member = members_[holder];
  const Block block = BlockAt(at, bytes);
  Forget(&member, block);
  // A record is found only in the block where it arrived last.
  if (const auto old = member.begins.find(record); old != member.begins.end()) {
    member.blocks.erase(old->second);
  }
  try {
    member.begins[record] = block.begin;
    member.blocks[block.begin] = {block.end, record};
  } catch (const std::bad_alloc&) {
    member.begins.erase(record);
  }
}

void PeerTier::Forget(Member* member, const Block& block) {
  auto it = member->blocks.lower_bound(block.end);
  while (it != member->blocks.begin()) {
    --it;
    if (it->second.end <= block.begin) return;  // and so do all in front of it
    member->begins.erase(it->second.record);
    it = member->blocks.erase(it);
  }
}

void PeerTier::Withdraw(Holder holder, const std::byte* at, int64_t bytes,
                        absl::FunctionRef<void(Copy)> wait) {
  const MutexLock lock(&mu_);
  WithdrawLocked(holder, BlockAt(at, bytes), wait);
}

void PeerTier::WithdrawLocked(Holder holder, const Block& block,
                              absl::FunctionRef<void(Copy)> wait) {
  Forget(&members_[holder], block);
  for (const Reading& reading : readings_) {
    if (reading.from == holder && reading.block.Overlaps(block)) wait(reading.copy);
  }
}

PeerTier::Copy PeerTier::Read(Holder holder, int64_t record,
                              absl::FunctionRef<Copy(int device, const std::byte* at)> begin) {
  const MutexLock lock(&mu_);
  try {
    readings_.reserve(readings_.size() + 1);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  // Starts at the own number, in a circle, so that not all engines read from the first.
  for (size_t i = 1; i < members_.size(); ++i) {
    const size_t m = (static_cast<size_t>(holder) + i) % members_.size();
    const Member& member = members_[m];
    const auto found = member.begins.find(record);
    if (!member.here || found == member.begins.end()) continue;
    const auto judged = pays_.find({member.device, members_[holder].device});
    if (judged != pays_.end() && !judged->second) continue;
    const Block block = {found->second, member.blocks.at(found->second).end};
    const Copy copy = begin(member.device, reinterpret_cast<const std::byte*>(block.begin));
    if (copy == nullptr) continue;
    readings_.push_back({static_cast<Holder>(m), holder, block, copy});
    ++stats_.copies;
    stats_.bytes += static_cast<int64_t>(block.end - block.begin);
    return copy;
  }
  return nullptr;
}

void PeerTier::Done(Holder holder, Copy copy) {
  const MutexLock lock(&mu_);
  std::erase_if(readings_, [&](const Reading& reading) {
    return reading.by == holder && reading.copy == copy;
  });
}

PeerTierStats PeerTier::stats() const {
  const MutexLock lock(&mu_);
  return stats_;
}

std::shared_ptr<PeerTier> MakePeerTier() { return std::make_shared<PeerTier>(); }

PeerTierStats StatsOf(const PeerTier& tier) { return tier.stats(); }

}  // namespace moert
