// Decides whether misses are shared with the CPU. If few experts are missing, the handover costs
// more than the CPU saves: some tokens are timed the other way now and then, and the faster way is
// kept.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_SHARE_TRIAL_H_
#define MOERT_EXAMPLES_GGML_BACKEND_SHARE_TRIAL_H_

#include <chrono>
#include <vector>

namespace moert_ggml {

class ShareTrial {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Tokens per way in a comparison.
  static constexpr int kTokens = 12;
  /// Tokens between two trials: the first time, and at most. After a trial that changes nothing the
  /// interval doubles.
  static constexpr int kFirstHold = 64, kLongestHold = 4096;

  /// `held`: the share of the experts that the GPU's slots hold.
  explicit ShareTrial(double held) { Restart(held); }
  /// Starts over, after a change of the budget.
  void Restart(double held);

  bool shares() const { return shares_; }
  /// A token begins that is alone in its batch.
  void BeginToken(Time now);
  /// Other work begins: the time since the last token is meaningless.
  void Interrupt() { timed_ = false; }

 private:
  void Take(std::chrono::nanoseconds time);
  void Switch();

  bool shares_ = true;
  bool trying_ = false;  // the way that does not hold
  bool timed_ = false;   // since last_
  Time last_{};
  int hold_ = kFirstHold, left_ = kFirstHold;
  std::vector<std::chrono::nanoseconds> times_, before_;  // of this way; of the one that holds
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_SHARE_TRIAL_H_
