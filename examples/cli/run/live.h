// A line of statistics while a run goes on.
#ifndef MOERT_EXAMPLES_CLI_RUN_LIVE_H_
#define MOERT_EXAMPLES_CLI_RUN_LIVE_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "moert/engine.h"
#include "moert/stats.h"

namespace moert::cli {

/// Rates between two snapshots that are `seconds` apart: tokens and bytes a second, hits, the share
/// of the time that layers stalled, by reason, and the contents of the fast tier.
std::string LiveText(const EngineStats& before, const EngineStats& now, double seconds,
                     int64_t tokens);

/// Shows this text on stderr twice a second while the object lives: one line that is redrawn, or
/// separate lines if the generated text goes to the same terminal or stderr is a file.
class Live {
 public:
  /// `engine` is borrowed. Shows nothing if `enabled` is false.
  Live(const Engine* engine, bool enabled);
  ~Live();
  Live(const Live&) = delete;
  Live& operator=(const Live&) = delete;

  /// From any thread: tokens done, of all kinds.
  void AddTokens(int64_t tokens) { tokens_.fetch_add(tokens, std::memory_order_relaxed); }

 private:
  void Show();

  const Engine* const engine_;
  std::atomic<int64_t> tokens_{0};
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_RUN_LIVE_H_
