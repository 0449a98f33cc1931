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

bool StreamPlan::ReadsIds(int layer, int64_t tokens) {
  if (last_ >= 0 && layer <= last_) EndPass();
  if (layer <= last_ || last_ < 0) BeginPass(tokens);
  last_ = layer;
  return reads_;
}

void StreamPlan::EndPass() {
  end_ = last_;
  if (!reads_ || shares_) return;
  const bool all_named = static_cast<double>(named_) >= kNearlyAll * static_cast<double>(there_);
  // For the first layer of a pass nothing was loaded ahead.
  const bool link_waits = 2 * idle_ > calls_;
  reads_ = !Cheap(there_ - named_) || (!all_named && !link_waits);
  if (!reads_) likely_ = all_;
}

void StreamPlan::BeginPass(int64_t tokens) {
  // Fewer tokens use fewer experts.
  reads_ = reads_ || unread_++ == kUnreadPasses || 2 * tokens < tokens_;
  if (reads_) {
    unread_ = 0;
    tokens_ = tokens;
  }
  calls_ = idle_ = 0;
  shares_ = false;
  named_ = there_ = vain_ = brought_ = 0;
  took_ = waited_ = Time(0);
}

void StreamPlan::Named(int layer, std::span<const int32_t> experts, bool idle, Time waited) {
  const auto l = static_cast<size_t>(layer);
  std::vector<uint8_t> is_named(all_[l].size(), 0);
  for (const int32_t e : experts) is_named[static_cast<size_t>(e)] = 1;
  for (const int32_t e : likely_[l]) vain_ += is_named[static_cast<size_t>(e)] == 0 ? 1 : 0;
  likely_[l].assign(experts.begin(), experts.end());
  ++calls_;
  idle_ += idle ? 1 : 0;
  named_ += static_cast<int64_t>(experts.size());
  there_ += static_cast<int64_t>(all_[l].size());
  waited_ += waited;
}

void StreamPlan::Brought(size_t experts, Time took) {
  brought_ += static_cast<int64_t>(experts);
  took_ += took;
}

bool StreamPlan::Cheap(int64_t experts) const { return experts * took_ <= brought_ * waited_; }

bool StreamPlan::ComesAhead(int layer) const {
  const bool comes = layer < static_cast<int>(all_.size()) && layer <= end_;
  return comes && (!reads_ || Cheap(vain_));
}

}  // namespace moert_ggml
