// A budget that changes while llama.cpp runs: as the user's file says, or, without a budget by the
// user, as other programs take and free memory.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_LIVE_BUDGET_H_
#define MOERT_EXAMPLES_GGML_BACKEND_LIVE_BUDGET_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace moert_ggml {

/// MOERT_BUDGET_FILE, as it changes. Not thread-safe.
class BudgetFile {
 public:
  /// `path` empty: there is none.
  explicit BudgetFile(std::string path) : path_(std::move(path)) {}

  /// The budget in the form of Options. False: `error` says what is wrong with the file or its
  /// text.
  bool Read(int64_t* bytes, double* fraction, std::string* error);
  /// The same if the text has changed since the last time, legal or not; else false, with no error.
  bool ReadChanged(int64_t* bytes, double* fraction, std::string* error);

 private:
  const std::string path_;
  std::optional<std::string> last_;  // what was read, or why it was not
};

/// Bytes of one kind of memory.
struct MemoryNow {
  int64_t budget = 0, held = 0;  // of the experts
  int64_t least = 0, most = 0;   // legal budgets
  int64_t free = 0;              // of everybody; below 0: not known
};

/// The budget that leaves `reserve` free: lower if less than half of it is left, higher if more
/// than twice of it is left, else unchanged.
int64_t FollowFree(const MemoryNow& now, int64_t reserve);

/// True once a second.
class EverySecond {
 public:
  using Time = std::chrono::steady_clock::time_point;
  bool operator()(Time now) {
    if (now - last_ < std::chrono::seconds(1)) return false;
    last_ = now;
    return true;
  }

 private:
  Time last_ = std::chrono::steady_clock::now();
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_LIVE_BUDGET_H_
