// A place where two threads have to be at once.
#ifndef MOERT_TESTS_SUPPORT_MEETING_H_
#define MOERT_TESTS_SUPPORT_MEETING_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/status/status.h"

namespace moert::test {

/// Thread-safe.
class Meeting {
 public:
  /// Returns when two calls have been under way at once, now or before; DeadlineExceeded where
  /// nobody else comes for a while.
  absl::Status Wait() const {
    std::unique_lock<std::mutex> lock(mu_);
    met_ |= ++here_ == 2;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(20), [this] { return met_; });
    --here_;
    return met_ ? absl::OkStatus() : absl::DeadlineExceededError("nobody else came to read");
  }

 private:
  mutable std::mutex mu_;
  mutable std::condition_variable changed_;
  mutable int here_ = 0;
  mutable bool met_ = false;
};

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_MEETING_H_
