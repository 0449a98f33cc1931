#include "prefetch/window_estimate.h"

#include <algorithm>

namespace moert {
namespace {

constexpr int kSizes = 22;  // up to 2^21 tokens

/// Adds a time. A 0 before the first measurement means that nothing was measured.
void Observe(double ns, Ewma<running_mean::kWindow>* mean) {
  if (ns > 0 || mean->measured()) mean->Add(ns);
}

int SizeClass(int64_t tokens) {
  int size = 0;
  while (size + 1 < kSizes && (int64_t{1} << size) < tokens) ++size;
  return size;
}

}  // namespace

WindowEstimate::WindowEstimate(int layers, const HardwareProfile* profile)
    : layers_(layers),
      profile_(profile),
      mean_ns_(2 * size_t{kSizes} * layers),
      idle_ns_(mean_ns_.size()) {}

size_t WindowEstimate::Index(Phase phase, int layer, int64_t tokens) const {
  return (static_cast<size_t>(phase) * kSizes + SizeClass(tokens)) * layers_ + layer;
}

void WindowEstimate::Routed(const PolicyContext& context, int64_t tokens, int64_t stalled_ns) {
  const bool next_layer = context.step == last_.step && context.layer == last_.layer + 1;
  const bool next_step = context.step == last_.step + 1 && context.layer == 0 &&
                         last_.layer == layers_ - 1 && context.phase == last_.phase;
  if (any_ && tokens == last_tokens_ && (next_layer || next_step)) {
    double ns =
        static_cast<double>(context.now_ns - last_.now_ns - (stalled_ns - last_stalled_ns_));
    const size_t index = Index(last_.phase, last_.layer, tokens);
    // Between two steps a host may also wait for its user, which does not belong to the window.
    constexpr double kLongest = 4;
    PolicyContext before = last_;
    before.layer = std::max(0, last_.layer - 1);
    if (next_step) ns = std::min(ns, kLongest * static_cast<double>(WindowNs(before, tokens)));
    Observe(ns, &mean_ns_[index]);
    if (waited_ns_ >= 0) {
      const double left = static_cast<double>(std::max<int64_t>(1, context.now_ns - waited_ns_));
      Observe(std::min(left, ns), &idle_ns_[index]);
    }
  }
  last_ = context;
  last_tokens_ = tokens;
  last_stalled_ns_ = stalled_ns;
  waited_ns_ = -1;
  any_ = true;
}

int64_t WindowEstimate::WindowNs(const PolicyContext& context, int64_t tokens) const {
  const Mean& mean = mean_ns_[Index(context.phase, context.layer, tokens)];
  if (mean.measured()) return static_cast<int64_t>(mean.mean());
  return profile_->LayerNs(context.phase == Phase::kPrefill, tokens);
}

int64_t WindowEstimate::IdleNs(const PolicyContext& context, int64_t tokens) const {
  const Mean& idle = idle_ns_[Index(context.phase, context.layer, tokens)];
  return idle.measured() ? static_cast<int64_t>(idle.mean()) : -1;
}

}  // namespace moert
