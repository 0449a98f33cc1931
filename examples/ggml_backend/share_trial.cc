#include "share_trial.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace moert_ggml {
namespace {

// If slots hold this share of the experts, the way without the CPU is tried second.
constexpr double kNearlyAll = 0.75;

// The mean without the slowest quarter: the host may pause between two tokens.
double Typical(std::vector<std::chrono::nanoseconds> times) {
  const size_t kept = times.size() - times.size() / 4;
  std::sort(times.begin(), times.end());
  const auto sum = std::accumulate(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(kept),
                                   std::chrono::nanoseconds{0});
  return static_cast<double>(sum.count()) / static_cast<double>(kept);
}

}  // namespace

void ShareTrial::Restart(double held) {
  shares_ = held < kNearlyAll;
  trying_ = timed_ = false;
  hold_ = left_ = kFirstHold;
  times_.clear();
}

void ShareTrial::BeginToken(Time now) {
  if (std::exchange(timed_, true)) Take(now - last_);
  last_ = now;
}

void ShareTrial::Take(std::chrono::nanoseconds time) {
  times_.push_back(time);
  if (times_.size() > kTokens) times_.erase(times_.begin());
  if (!trying_) {
    if (--left_ > 0 || times_.size() < kTokens) return;
    before_ = times_;
    trying_ = true;
    Switch();
    return;
  }
  if (times_.size() < kTokens) return;
  trying_ = false;
  const bool better = Typical(times_) < Typical(before_);
  hold_ = better ? kFirstHold : std::min(2 * hold_, kLongestHold);
  left_ = hold_;
  if (!better) Switch();
}

void ShareTrial::Switch() {
  shares_ = !shares_;
  times_.clear();
  timed_ = false;  // the token between both ways is of neither
}

}  // namespace moert_ggml
