// A progress line on a terminal, nothing anywhere else.
#ifndef MOERT_EXAMPLES_CLI_COMMON_PROGRESS_H_
#define MOERT_EXAMPLES_CLI_COMMON_PROGRESS_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace moert::cli {

/// The line of a job after `seconds`: "WHAT: 3 of 8 (37%), 1.5/s, 3 s left", or, with nothing known
/// of how much there is (total 0), the time that it took so far. `bytes`: counts are bytes.
std::string ProgressText(const std::string& what, int64_t done, int64_t total, double seconds,
                         bool bytes);

/// Redraws one line of stderr five times a second from the job's second second on, whether or not
/// anything was done meanwhile. Erases it when destroyed.
class Progress {
 public:
  /// Shows nothing if `enabled` is false or stderr is not a terminal.
  Progress(std::string what, bool enabled, bool bytes = false);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// From any thread.
  void Update(int64_t done, int64_t total) {
    done_.store(done, std::memory_order_relaxed);
    total_.store(total, std::memory_order_relaxed);
  }

 private:
  void Draw();

  const std::string what_;
  const bool bytes_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::atomic<int64_t> done_{0}, total_{0};
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;  // not there where nothing is shown
};

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_PROGRESS_H_
