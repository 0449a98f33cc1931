// Decides whether a batch of more than a few tokens is shared with the CPU, by the measured times
// of batches of its size with and without. The handover costs a layer more than some batches save.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_PROMPT_TRIAL_H_
#define MOERT_EXAMPLES_GGML_BACKEND_PROMPT_TRIAL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace moert_ggml {

/// Not thread-safe.
class PromptTrial {
 public:
  using Time = std::chrono::nanoseconds;  // of a steady clock

  /// Measurements of one way before the other is tried, and the most that are kept.
  static constexpr size_t kFirst = 2, kLast = 4;
  /// Batches of the faster way between two trials of the other one, and batches of a trial.
  static constexpr int kHold = 24, kTrial = 2;

  /// Starts over, after a change of the budget.
  void Restart() { *this = PromptTrial(); }
  /// A batch begins; the last one has ended.
  void Begin(int64_t tokens, Time now);
  /// Other work begins.
  void End(Time now);
  /// Whether the current batch is shared.
  bool shares() const { return shares_; }

 private:
  /// Batches of up to twice as many tokens as the size below.
  struct Size {
    std::deque<double> times[2];  // a token's, in ns; shared: of [1]
    int left = kHold + kTrial;    // batches until a trial has ended
  };
  bool Choose(Size* size) const;

  std::vector<Size> sizes_;
  size_t size_ = 0;  // of the batch that has begun
  int64_t tokens_ = 0;
  bool shares_ = true;
  bool timed_ = false;
  int same_ = -1;  // batches in front of it that went the same way
  Time begin_{};
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_PROMPT_TRIAL_H_
