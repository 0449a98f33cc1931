// LinkPacer: a link slower than the one there is, to measure what a machine with such a link would
// do. It carries one transfer after another; a transfer holds it for bytes / rate and has arrived
// when that time is over, however early its bytes did.
#ifndef MOERT_LIB_TRANSFER_LINK_PACER_H_
#define MOERT_LIB_TRANSFER_LINK_PACER_H_

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "base/mutex.h"
#include "moert/tools/profile.h"

namespace moert {

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
