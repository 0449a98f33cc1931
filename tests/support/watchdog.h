// A section of a test that may hang: it ends the program in time, and says where it was.
#ifndef MOERT_TESTS_SUPPORT_WATCHDOG_H_
#define MOERT_TESTS_SUPPORT_WATCHDOG_H_

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace moert::test {

/// A line of standard error says how long its life was. Where that would be longer than `limit`,
/// what everybody noted last is printed, and the program fails. Needs no lock of a device's driver.
class Watchdog {
 public:
  Watchdog(std::string section, int ranks, std::chrono::milliseconds limit)
      : section_(std::move(section)),
        limit_(limit),
        notes_(static_cast<size_t>(ranks), "begins"),
        watch_([this] { Watch(); }) {}
  ~Watchdog() {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      over_ = true;
    }
    changed_.notify_all();
    watch_.join();
    std::fprintf(stderr, "%s: %.2f s\n", section_.c_str(), Seconds());
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// The name of a rank's work from now on. Thread-safe.
  void Note(int rank, std::string what) {
    const std::lock_guard<std::mutex> lock(mu_);
    notes_[static_cast<size_t>(rank)] = std::move(what);
  }

 private:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  void Watch() {
    std::unique_lock<std::mutex> lock(mu_);
    if (changed_.wait_for(lock, limit_, [this] { return over_; })) return;
    std::fprintf(stderr, "%s: not done after %.2f s\n", section_.c_str(), Seconds());
    for (size_t r = 0; r < notes_.size(); ++r) {
      std::fprintf(stderr, "  rank %zu %s\n", r, notes_[r].c_str());
    }
    std::_Exit(EXIT_FAILURE);
  }

  const std::string section_;
  const std::chrono::milliseconds limit_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<std::string> notes_;
  bool over_ = false;
  std::thread watch_;  // last: it uses the others
};

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_WATCHDOG_H_
