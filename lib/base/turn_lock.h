// A lock that is taken in turn, and one that goes ahead of those that wait for theirs.
#ifndef MOERT_LIB_BASE_TURN_LOCK_H_
#define MOERT_LIB_BASE_TURN_LOCK_H_

#include "base/mutex.h"

namespace moert {

/// The threads that wait for a mutex: one at a time in turn, and those that go ahead of it.
class Turns {
 public:
  Turns() = default;
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

 private:
  friend class TurnLock;
  friend class AheadLock;

  Mutex turn_;  // of the next TurnLock
  Mutex mu_;
  CondVar changed_;
  int ahead_ ABSL_GUARDED_BY(mu_) = 0;  // threads that wait in an AheadLock
};

/// Holds `mu` as long as it lives, taken in turn: one waits at `mu`, the others for their turn.
class ABSL_SCOPED_LOCKABLE TurnLock {
 public:
  TurnLock(Turns* turns, Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) {
    const MutexLock turn(&turns->turn_);
    {
      const MutexLock lock(&turns->mu_);
      while (turns->ahead_ > 0) turns->changed_.Wait(&turns->mu_);
    }
    mu_->Lock();
  }
  ~TurnLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  TurnLock(const TurnLock&) = delete;
  TurnLock& operator=(const TurnLock&) = delete;

 private:
  Mutex* const mu_;
};

/// The same ahead of every TurnLock but the one that waits at `mu` already.
class ABSL_SCOPED_LOCKABLE AheadLock {
 public:
  AheadLock(Turns* turns, Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) {
    Count(turns, 1);
    mu_->Lock();
    Count(turns, -1);
  }
  ~AheadLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  AheadLock(const AheadLock&) = delete;
  AheadLock& operator=(const AheadLock&) = delete;

 private:
  static void Count(Turns* turns, int change) {
    const MutexLock lock(&turns->mu_);
    turns->ahead_ += change;
    if (turns->ahead_ == 0) turns->changed_.NotifyAll();
  }

  Mutex* const mu_;
};

}  // namespace moert

#endif  // MOERT_LIB_BASE_TURN_LOCK_H_
