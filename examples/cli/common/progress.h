// A progress line on a terminal, nothing anywhere else.
#ifndef MOERT_EXAMPLES_CLI_COMMON_PROGRESS_H_
#define MOERT_EXAMPLES_CLI_COMMON_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>

namespace moert::cli {

/// Redraws one line of stderr, at most ten times a second. Erases it when destroyed.
class Progress {
 public:
  /// Shows nothing if `enabled` is false or stderr is not a terminal.
  Progress(std::string what, bool enabled);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Update(int64_t done, int64_t total);

 private:
  const std::string what_;
  const bool enabled_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_PROGRESS_H_
