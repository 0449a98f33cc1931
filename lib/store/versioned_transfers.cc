// VersionedStore: transfers of versions, and their publication on arrival.
#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "store/block_pool.h"
#include "store/versioned_store.h"
#include "transfer/link_pacer.h"
#include "transfer/transfer_queue.h"

namespace moert {

void VersionedStore::SubmitOrGive(ExpertKey key, int version, int32_t block, LoadReason reason) {
  absl::Cleanup give = [&] { PoolOf(version).Give(block); };
  Submit(key, version, block, reason);
  std::move(give).Cancel();
}

void VersionedStore::Submit(ExpertKey key, int version, int32_t block, LoadReason reason) {
  BlockPool& pool = PoolOf(version);
  done_.reserve(done_.size() + static_cast<size_t>(loading_) + 1);  // so that arrival cannot fail
  transfers_->Submit({key, version, versions_[version].source_version, reason,
                      absl::MakeSpan(pool.Address(block), pool.bytes(block)),
                      layout(key, version).bytes});
  // The transfer was submitted: from here on nothing may fail.
  At(key).versions[version] = {VersionState::kLoading, reason, block, tick_};
  ++loading_;
  if (versions_[version].pool == 0) ++held_[key.layer];
  UpdateVisible(key);
}

void VersionedStore::Drop(ExpertKey key, int version) {
  Version& v = At(key).versions[version];
  PoolOf(version).Give(v.block);
  if (versions_[version].pool == 0) --held_[key.layer];
  v = Version{};
  UpdateVisible(key);
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
    // If a policy or a trace throws, the state of this expert is consistent already, and the next
    // call publishes the others.
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
    const bool own = !prefetched && version.begun == tick_;
    Drop(done.key, done.version);
    if (own) {  // else not reported: a call that waits for the expert loads it again
      entry.failure = done.status;
      version.begun = tick_;
    }
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
  if (driver_.link != nullptr) driver_.link->Observe(done.bytes, done.started_ns, done.finished_ns);
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
  Entry& entry = At(key);
  const absl::Status failure = std::exchange(entry.failure, absl::OkStatus());
  const bool current = std::any_of(entry.versions.begin(), entry.versions.end(),
                                   [this](const Version& v) { return v.begun == tick_; });
  return current ? failure : absl::OkStatus();  // else of an earlier call that did not ask
}

}  // namespace moert
