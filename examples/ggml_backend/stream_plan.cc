#include "stream_plan.h"

#include <numeric>

namespace moert_ggml {
namespace {

constexpr double kNearlyAll = 0.97;
constexpr int kUnreadPasses = 16;  // then ids are read again: batches change

}  // namespace

StreamPlan::StreamPlan(const std::vector<int>& experts) {
  for (const int count : experts) {
    all_.emplace_back(static_cast<size_t>(count));
    std::iota(all_.back().begin(), all_.back().end(), 0);
  }
  likely_ = all_;
}

bool StreamPlan::ReadsIds(int layer) {
  if (layer <= last_) BeginPass();
  last_ = layer;
  return reads_;
}

void StreamPlan::BeginPass() {
  end_ = last_;
  if (reads_) {
    const bool all_named = static_cast<double>(named_) >= kNearlyAll * static_cast<double>(there_);
    // The first layer of a pass has nothing brought for it.
    const bool link_waits = 2 * idle_ > calls_;
    reads_ = !all_named && !link_waits;
    unread_ = 0;
    if (!reads_) likely_ = all_;
  } else if (++unread_ == kUnreadPasses) {
    reads_ = true;
  }
  calls_ = idle_ = 0;
  named_ = there_ = 0;
}

void StreamPlan::Named(int layer, std::span<const int32_t> experts, bool idle) {
  const auto l = static_cast<size_t>(layer);
  likely_[l].assign(experts.begin(), experts.end());
  ++calls_;
  idle_ += idle ? 1 : 0;
  named_ += static_cast<int64_t>(experts.size());
  there_ += static_cast<int64_t>(all_[l].size());
}

}  // namespace moert_ggml
