// A lock that is taken in turn.
#ifndef MOERT_LIB_BASE_TURN_LOCK_H_
#define MOERT_LIB_BASE_TURN_LOCK_H_

#include "base/mutex.h"

namespace moert {

/// Holds `mu` as long as it lives, taken in turn: one waits at `mu`, the others at `turns`. A
/// MutexLock of `mu` itself goes ahead of all but that one, however many there are.
class ABSL_SCOPED_LOCKABLE TurnLock {
 public:
  TurnLock(Mutex* turns, Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) {
    const MutexLock turn(turns);
    mu_->Lock();
  }
  ~TurnLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  TurnLock(const TurnLock&) = delete;
  TurnLock& operator=(const TurnLock&) = delete;

 private:
  Mutex* const mu_;
};

}  // namespace moert

#endif  // MOERT_LIB_BASE_TURN_LOCK_H_
