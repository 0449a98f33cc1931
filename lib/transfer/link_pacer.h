// LinkPacer: imitates a slower link than the real one, to measure how a machine with such a link
// would perform. It carries one transfer at a time. A transfer holds the link for bytes / rate and
// counts as arrived when that time is over, even if its bytes arrived earlier.
#ifndef MOERT_LIB_TRANSFER_LINK_PACER_H_
#define MOERT_LIB_TRANSFER_LINK_PACER_H_

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "base/ewma.h"
#include "base/mutex.h"
#include "moert/tools/profile.h"

namespace moert {

/// Estimates the time of a transfer: the profile's model, corrected by measurements. Called under
/// the engine's lock.
class LinkEstimate {
 public:
  /// `profile` is borrowed.
  explicit LinkEstimate(const HardwareProfile* profile) : profile_(profile) {}

  /// The time that a transfer of `bytes` occupies the link.
  int64_t TransferNs(int64_t bytes) const {
    const int64_t modelled_ns = profile_->TransferNs(bytes);
    if (!scale_.measured()) return modelled_ns;
    return HardwareProfile::WholeNs(scale_.mean() * static_cast<double>(modelled_ns));
  }

  /// Adds a transfer that ran from started_ns to finished_ns. Called in the order of finishing.
  void Observe(int64_t bytes, int64_t started_ns, int64_t finished_ns) {
    // Several readers share the link, so this transfer's share is the time since the previous one
    // finished.
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

/// Shared by all transfers over the link. Thread-safe.
class LinkPacer {
 public:
  /// `clock` is borrowed.
  LinkPacer(const Clock* clock, double bytes_per_s) : clock_(clock), bytes_per_s_(bytes_per_s) {}

  /// The time from which the link is free; in the past if it is free now.
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
  /// Takes the next turn for a transfer of `bytes`. Returns when the transfer will have arrived.
  int64_t Reserve(int64_t bytes) {
    const MutexLock lock(&mu_);
    free_ns_ = std::max(Now(), free_ns_) +
               HardwareProfile::WholeNs(1e9 * static_cast<double>(bytes) / bytes_per_s_);
    return free_ns_;
  }

 private:
  /// The current time. If the clock has stepped back, shifts the turns by as much.
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
  int64_t seen_ns_ ABSL_GUARDED_BY(mu_) = 0;  // the time when the clock was last read
};

}  // namespace moert

#endif  // MOERT_LIB_TRANSFER_LINK_PACER_H_
