#include "prefetch/prediction_modes.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace moert {

void PrefetchControl::Rest(int steps) {
  stage_ = Stage::kGap;
  left_ = steps;
  before_ns_ = trial_ns_ = after_ns_ = 0;
}

void PrefetchControl::StepDone(int64_t rows, int64_t ns) {
  if (rows != rows_) {
    // Steps of another size are not comparable.
    rows_ = rows;
    if (stage_ != Stage::kGap) Rest(kFirstGap);
  }
  const bool settled = left_ <= kBlock - kSettle;
  const double t = settled ? static_cast<double>(ns) : 0;
  if (stage_ == Stage::kBefore) before_ns_ += t;
  if (stage_ == Stage::kTrial) trial_ns_ += t;
  if (stage_ == Stage::kAfter) after_ns_ += t;
  if (--left_ > 0) return;
  left_ = kBlock;
  switch (stage_) {
    case Stage::kGap:
      stage_ = Stage::kBefore;
      break;
    case Stage::kBefore:
      stage_ = Stage::kTrial;
      break;
    case Stage::kTrial:
      stage_ = Stage::kAfter;
      break;
    case Stage::kAfter:
      EndTrial();
      break;
  }
}

void PrefetchControl::EndTrial() {
  const double proven_ns = (before_ns_ + after_ns_) / 2;
  if (proven_ns <= 0) return Rest(gap_);
  ++trials_;
  gains_.push_back((proven_ns - trial_ns_) / proven_ns);
  if (gains_.size() > 2 * kTrials) gains_.erase(gains_.begin());
  const double n = static_cast<double>(gains_.size());
  double mean = 0, square = 0;
  for (const double gain : gains_) mean += gain / n;
  for (const double gain : gains_) square += (gain - mean) * (gain - mean);
  const double error = n > 1 ? std::sqrt(square / (n - 1) / n) : 0;

  // A gain below one percent is not worth a change of mode.
  constexpr double kWorthIt = 0.01;
  constexpr double kClear = 2;  // standard errors
  if (static_cast<int>(gains_.size()) >= kTrials && mean > kWorthIt && mean > kClear * error) {
    proven_ = !proven_;
    ++switches_;
    gains_.clear();
    gap_ = kFirstGap;
  } else if (gains_.back() > 0) {
    gap_ = kFirstGap / 4;  // the other mode may be winning: find out soon
  } else {
    gap_ = std::clamp(2 * gap_, kFirstGap, kLongestGap);
  }
  Rest(gap_);
}

PredictionYield::PredictionYield(const Options& options, int layers)
    : options_(options), worth_(std::max<int64_t>(1, int64_t{options.look} * layers / 32)) {
  BeginLook(options_.look);
}

double PredictionYield::cost_ns() const {
  if (!options_.measured || with_.samples() < kKnown || without_.samples() < kKnown) return -1;
  return std::max(0.0, with_.mean() - without_.mean());
}

void PredictionYield::BeginLook(int steps) {
  left_ = steps;
  looked_ = 0;
  admitted_ = saved_ns_ = missed_ns_ = 0;
}

void PredictionYield::StepDone(int64_t rows, int64_t step_ns, int64_t stalled_ns, bool predicted) {
  if (rows > 2 * rows_ || 2 * rows < rows_) {  // windows and costs change with the size
    with_ = without_ = all_ = Mean{};
    mode_steps_ = resting_ = rest_ = blindly_ = 0;
    BeginLook(options_.look);
  }
  rows_ = rows;
  if (predicted != predicted_) mode_steps_ = 0;
  predicted_ = predicted;
  Mean& mean = predicted ? with_ : without_;
  // Starts a new mean each time: times with a colder cache or a shorter context are not comparable.
  if (++mode_steps_ == kSettle) mean = Mean{};
  if (mode_steps_ > kSettle) mean.Add(static_cast<double>(step_ns - stalled_ns));
  if (!predicted) all_.Add(static_cast<double>(step_ns));

  if (resting_ > 0) {
    if (--resting_ == 0) EndRest();
    return;
  }
  if (!predicted) return;
  ++looked_;
  if (--left_ == 0) EndLook();
}

void PredictionYield::EndLook() {
  const double cost = cost_ns();
  const bool repaid = cost < 0 ? admitted_ * options_.look >= worth_ * looked_
                               : saved_ns_ > 0 && static_cast<double>(saved_ns_) >= cost * looked_;
  blindly_ = 0;
  const int longer = std::max((options_.measured ? 4 : 2) * rest_, RestForPrice(cost));
  rest_ = repaid ? 0 : std::clamp(longer, options_.look, options_.longest);
  resting_ = rest_;
  BeginLook(options_.look);
}

int PredictionYield::RestForPrice(double cost) const {
  constexpr double kPrice = 0.01;
  if (cost <= 0 || all_.mean() <= 0) return 0;
  const double steps = (options_.look / 2) * cost / (kPrice * all_.mean());
  return static_cast<int>(std::min<double>(steps, options_.longest / 2));
}

void PredictionYield::EndRest() {
  const double cost = cost_ns();
  // Not even perfect predictions would pay: rests longer without a look.
  if (cost >= 0 && static_cast<double>(missed_ns_) < cost * rest_ && ++blindly_ < kBlindly) {
    rest_ = std::min(4 * rest_, options_.longest);
    resting_ = rest_;
  }
  BeginLook(options_.measured ? std::max(1, options_.look / 2) : options_.look);
}

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
      constexpr double kFree = 0.005;  // share of the step that is too small to be worth trials
      cost_.Add(static_cast<double>(spent_ns));
      all_.Add(static_cast<double>(ns));
      if (left_ > 0 || cost_.mean() <= kFree * all_.mean()) return;
      stage_ = Stage::kWeigh;
      left_ = kWeigh;
      return;
    }
    case Stage::kWeigh: {
      // Better predictions save about a third of the waiting, but come later.
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
    // Steps of a rest have no prefetches, so control_ must not compare them.
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
