#include "prefetch/prediction_modes.h"

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

namespace {

// Prompts are too few and too different to compare their times.
constexpr PredictionYield::Options kPrefill{/*look=*/2, /*longest=*/16, /*measured=*/false};

}  // namespace

PredictionModes::PredictionModes(int layers)
    : layers_(layers), yields_{PredictionYield(kPrefill, layers), PredictionYield({}, layers)} {}

bool PredictionModes::predicting(Phase phase) const {
  // Prefill is exempt: over many tokens the predictions are nearly always right, and its steps are
  // too few and too different to experiment with.
  return !yields_[static_cast<int>(phase)].resting() && (phase == Phase::kPrefill || control_.on());
}

void PredictionModes::StepDone(Phase phase, int64_t rows, int64_t ns, int64_t stalled_ns,
                               PrefetchStats* stats) {
  PredictionYield& yield = *this->yield(phase);
  const bool predicted = predicting(phase);
  const bool rested = yield.resting();
  if (phase == Phase::kPrefill) return yield.StepDone(rows, ns, stalled_ns, predicted);
  if (source_.trying() || (predicted && !control_.trying())) {
    source_.StepDone(rows, ns, stalled_ns);
  } else {
    source_.Skip();
  }
  if (!source_.trying()) {
    yield.StepDone(rows, ns, stalled_ns, predicted);
    // Steps of a rest say nothing of what control_ compares.
    if (!rested) control_.StepDone(rows, ns);
    if (!rested && yield.resting()) {
      control_.Abandon();
      source_.Abandon();
      if (source_.Doubt()) yield = PredictionYield({}, layers_);
    }
  }
  stats->disabled_steps += control_.disabled() || rested;
  stats->disabled = control_.disabled() || yield.resting();
  stats->trials = control_.trials();
  stats->switches = control_.switches();
}

bool PredictionModes::counts() const {
  return !control_.disabled() && !yields_[static_cast<int>(Phase::kDecode)].doubted();
}

}  // namespace moert
