// LinkPacer: a link slower than the one there is, to measure what a machine with such a link would
// do. It carries one transfer after another; a transfer holds it for bytes / rate and has arrived
// when that time is over, however early its bytes did.
#ifndef MOERT_LIB_TRANSFER_LINK_PACER_H_
#define MOERT_LIB_TRANSFER_LINK_PACER_H_

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "base/ewma.h"
#include "base/mutex.h"
#include "moert/tools/profile.h"

namespace moert {

/// The time of a transfer as it is now: the profile's model, corrected by what was measured.
/// Called under the engine's lock.
class LinkEstimate {
 public:
  /// `profile` is borrowed.
  explicit LinkEstimate(const HardwareProfile* profile) : profile_(profile) {}

  /// Time the link is busy with a transfer of `bytes`.
  int64_t TransferNs(int64_t bytes) const {
    const int64_t modelled_ns = profile_->TransferNs(bytes);
    if (!scale_.measured()) return modelled_ns;
    return HardwareProfile::WholeNs(scale_.mean() * static_cast<double>(modelled_ns));
  }

  /// A transfer that ran from started_ns to finished_ns. In order of finishing.
  void Observe(int64_t bytes, int64_t started_ns, int64_t finished_ns) {
    // Several readers share the link: what it spent on this transfer is the time since the one
    // before was done.
    const int64_t busy_ns = finished_ns - std::max(started_ns, last_finished_ns_);
    last_finished_ns_ = std::max(last_finished_ns_, finished_ns);
    if (busy_ns < 0) return;
    scale_.Add(static_cast<double>(busy_ns) /
               static_cast<double>(std::max<int64_t>(1, profile_->TransferNs(bytes))));
  }

 private:
  const HardwareProfile* profile_;
  Ewma<running_mean::kLinkScale> scale_;
  int64_t last_finished_ns_ = 0;
};

/// Shared by everything that moves over the link. Thread-safe.
class LinkPacer {
 public:
  /// `clock` is borrowed.
  LinkPacer(const Clock* clock, double bytes_per_s) : clock_(clock), bytes_per_s_(bytes_per_s) {}

  /// From when on the link is free; in the past if it is.
  int64_t free_ns() const {
    const MutexLock lock(&mu_);
    return free_ns_;
  }
  /// How long the link is still busy; not positive if it is free.
  int64_t busy_ns() {
    const MutexLock lock(&mu_);
    const int64_t now_ns = Now();
    return free_ns_ - now_ns;
  }
  /// The next turn: when a transfer of `bytes` that takes it will have arrived.
  int64_t Reserve(int64_t bytes) {
    const MutexLock lock(&mu_);
    free_ns_ = std::max(Now(), free_ns_) +
               HardwareProfile::WholeNs(1e9 * static_cast<double>(bytes) / bytes_per_s_);
    return free_ns_;
  }

 private:
  /// Where the clock has stepped back, the turns move with it.
  int64_t Now() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const int64_t now_ns = clock_->now_ns();
    if (now_ns < seen_ns_) free_ns_ -= seen_ns_ - now_ns;
    seen_ns_ = now_ns;
    return now_ns;
  }

  const Clock* const clock_;
  const double bytes_per_s_;
  mutable Mutex mu_;
  int64_t free_ns_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t seen_ns_ ABSL_GUARDED_BY(mu_) = 0;  // the clock, when it was last asked
};

}  // namespace moert

#endif  // MOERT_LIB_TRANSFER_LINK_PACER_H_
