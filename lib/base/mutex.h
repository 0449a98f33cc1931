// std::mutex and related classes with the attributes of clang's thread safety analysis. A field
// declares the mutex that guards it, a method the mutex that it needs, and a clang build checks
// both (tests/support/check_thread_safety.sh).
//
// absl::Mutex has the attributes too, but Debian's static Abseil cannot carry its thread-local
// state into a shared library (see CMakeLists.txt).
#ifndef MOERT_LIB_BASE_MUTEX_H_
#define MOERT_LIB_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#include "absl/base/thread_annotations.h"

namespace moert {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mu_.try_lock(); }
  /// Tells the analysis that the mutex is held where it cannot see that, as in a callback. Checks
  /// nothing.
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}

 private:
  friend class CondVar;
  std::mutex mu_;
};

/// Holds a mutex as long as it lives.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) { mu_->Lock(); }
  /// Takes over a mutex that was locked by TryLock.
  MutexLock(Mutex* mu, std::adopt_lock_t) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) : mu_(mu) {}
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

/// Waits return spuriously too: call them in a loop over the condition.
class CondVar {
 public:
  void Wait(Mutex* mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    changed_.wait(lock);
    lock.release();
  }
  void WaitFor(Mutex* mu, std::chrono::nanoseconds time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    changed_.wait_for(lock, time);
    lock.release();
  }
  void NotifyOne() { changed_.notify_one(); }
  void NotifyAll() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

class ABSL_LOCKABLE SharedMutex {
 public:
  SharedMutex() = default;
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }
  void ReaderLock() ABSL_SHARED_LOCK_FUNCTION() { mu_.lock_shared(); }
  void ReaderUnlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock_shared(); }

 private:
  std::shared_mutex mu_;
};

class ABSL_SCOPED_LOCKABLE WriterMutexLock {
 public:
  explicit WriterMutexLock(SharedMutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) {
    mu_->Lock();
  }
  ~WriterMutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  WriterMutexLock(const WriterMutexLock&) = delete;
  WriterMutexLock& operator=(const WriterMutexLock&) = delete;

 private:
  SharedMutex* const mu_;
};

class ABSL_SCOPED_LOCKABLE ReaderMutexLock {
 public:
  explicit ReaderMutexLock(SharedMutex* mu) ABSL_SHARED_LOCK_FUNCTION(mu) : mu_(mu) {
    mu_->ReaderLock();
  }
  ~ReaderMutexLock() ABSL_UNLOCK_FUNCTION() { mu_->ReaderUnlock(); }
  ReaderMutexLock(const ReaderMutexLock&) = delete;
  ReaderMutexLock& operator=(const ReaderMutexLock&) = delete;

 private:
  SharedMutex* const mu_;
};

/// The threads that wait for a mutex: TurnLocks take turns, AheadLocks go ahead of them.
class Turns {
 public:
  Turns() = default;
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

 private:
  friend class TurnLock;
  friend class AheadLock;

  Mutex turn_;  // held by the TurnLock that is next
  Mutex mu_;
  CondVar changed_;
  int ahead_ ABSL_GUARDED_BY(mu_) = 0;  // threads that wait in an AheadLock
};

/// Holds `mu` as long as it lives. TurnLocks take turns: one waits for `mu`, the others for their
/// turn.
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

/// The same, ahead of every TurnLock but the one that already waits for `mu`.
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

#endif  // MOERT_LIB_BASE_MUTEX_H_
