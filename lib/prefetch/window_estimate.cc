#include "prefetch/window_estimate.h"

#include <algorithm>

namespace moert {
namespace {

constexpr int kSizes = 22;  // up to 2^21 tokens

int SizeClass(int64_t tokens) {
  int size = 0;
  while (size + 1 < kSizes && (int64_t{1} << size) < tokens) ++size;
  return size;
}

}  // namespace

WindowEstimate::WindowEstimate(int layers, const HardwareProfile* profile)
    : layers_(layers),
      profile_(profile),
      mean_ns_(2 * size_t{kSizes} * layers, 0),
      idle_ns_(mean_ns_.size(), 0) {}

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
    double& mean = mean_ns_[Index(last_.phase, last_.layer, tokens)];
    // Between two steps a host may also wait for its user, which is no time to count on.
    constexpr double kLongest = 4;
    PolicyContext before = last_;
    before.layer = std::max(0, last_.layer - 1);
    if (next_step) ns = std::min(ns, kLongest * static_cast<double>(WindowNs(before, tokens)));
    constexpr double kWeight = 0.1;
    mean = mean == 0 ? ns : mean + kWeight * (ns - mean);
    if (waited_ns_ >= 0) {
      const double left = static_cast<double>(std::max<int64_t>(1, context.now_ns - waited_ns_));
      double& idle = idle_ns_[Index(last_.phase, last_.layer, tokens)];
      idle = idle == 0 ? std::min(left, ns) : idle + kWeight * (std::min(left, ns) - idle);
    }
  }
  last_ = context;
  last_tokens_ = tokens;
  last_stalled_ns_ = stalled_ns;
  waited_ns_ = -1;
  any_ = true;
}

int64_t WindowEstimate::WindowNs(const PolicyContext& context, int64_t tokens) const {
  const double mean = mean_ns_[Index(context.phase, context.layer, tokens)];
  if (mean > 0) return static_cast<int64_t>(mean);
  return profile_->LayerNs(context.phase == Phase::kPrefill, tokens);
}

int64_t WindowEstimate::IdleNs(const PolicyContext& context, int64_t tokens) const {
  const double idle = idle_ns_[Index(context.phase, context.layer, tokens)];
  return idle > 0 ? static_cast<int64_t>(idle) : -1;
}

int64_t WindowEstimate::UntilNs(const PolicyContext& target, int64_t tokens, int64_t now_ns,
                                int64_t stalled_ns) const {
  if (!any_ || target.step != last_.step || last_.layer >= target.layer) return 0;
  PolicyContext at = target;
  int64_t ns = stalled_ns - last_stalled_ns_ - (now_ns - last_.now_ns);
  for (at.layer = last_.layer; at.layer < target.layer; ++at.layer) ns += WindowNs(at, tokens);
  return std::max<int64_t>(0, ns);
}

}  // namespace moert
