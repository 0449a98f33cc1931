#include "prefetch/prediction_source.h"

#include <algorithm>
#include <utility>

namespace moert {

bool PredictionSource::asks() const {
  return stage_ == Stage::kTried ? trial_.on() : stage_ == Stage::kLook;
}

void PredictionSource::Begin() {
  stage_ = Stage::kLook;
  left_ = kLook;
  cost_ = {};
  all_ = waited_ = {};
}

void PredictionSource::StepDone(int64_t rows, int64_t ns, int64_t stalled_ns) {
  if (rows > 2 * rows_ || 2 * rows < rows_) Begin();
  rows_ = rows;
  const int64_t spent_ns = std::exchange(spent_ns_, 0);
  left_ = std::max(0, left_ - 1);
  switch (stage_) {
    case Stage::kLook: {
      constexpr double kFree = 0.005;  // of the step: too little to be worth trials
      cost_.Add(static_cast<double>(spent_ns));
      all_.Add(static_cast<double>(ns));
      if (left_ > 0 || cost_.mean() <= kFree * all_.mean()) return;
      stage_ = Stage::kWeigh;
      left_ = kWeigh;
      return;
    }
    case Stage::kWeigh: {
      // Better predictions spare about a third of the waiting, and come later.
      constexpr double kLikely = 0.25;
      waited_.Add(static_cast<double>(stalled_ns));
      if (left_ > 0) return;
      stage_ = Stage::kTried;
      trial_ = PrefetchControl(cost_.mean() < kLikely * waited_.mean());
      return;
    }
    case Stage::kTried:
      trial_.StepDone(rows, ns);
      return;
  }
}

bool PredictionSource::Doubt() {
  if (stage_ != Stage::kTried || trial_.disabled()) return false;
  trial_ = PrefetchControl(false);
  return true;
}

}  // namespace moert
