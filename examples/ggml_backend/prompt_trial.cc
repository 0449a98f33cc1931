#include "prompt_trial.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace moert_ggml {

void PromptTrial::Begin(int64_t tokens, Time now) {
  End(now);
  size_ = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(tokens)));
  if (size_ >= sizes_.size()) sizes_.resize(size_ + 1);
  const bool shares = Choose(&sizes_[size_]);
  same_ = shares == shares_ ? same_ + 1 : 0;
  shares_ = shares;
  tokens_ = tokens;
  begin_ = now;
  timed_ = true;
}

void PromptTrial::End(Time now) {
  // Experts are loaded ahead by what the last batch used: the first batch after a change is slow.
  if (!std::exchange(timed_, false) || same_ == 0) return;
  std::deque<double>& times = sizes_[size_].times[shares_ ? 1 : 0];
  times.push_back(static_cast<double>((now - begin_).count()) / static_cast<double>(tokens_));
  if (times.size() > kLast) times.pop_front();
}

// The minimum over a few batches: the host may have paused during some of them.
bool PromptTrial::Choose(Size* size) const {
  const auto& [alone, shared] = size->times;
  if (shared.size() < kFirst) return true;
  if (alone.size() < kFirst) return false;
  const bool faster = *std::min_element(shared.begin(), shared.end()) <=
                      *std::min_element(alone.begin(), alone.end());
  if (size->left == 0) size->left = kHold + kTrial;
  return --size->left < kTrial ? !faster : faster;
}

}  // namespace moert_ggml
