#include "prefetch/prediction_yield.h"

#include <algorithm>

namespace moert {

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
  if (rows > 2 * rows_ || 2 * rows < rows_) {  // windows and costs of another length
    with_ = without_ = all_ = Mean{};
    mode_steps_ = resting_ = rest_ = blindly_ = 0;
    BeginLook(options_.look);
  }
  rows_ = rows;
  if (predicted != predicted_) mode_steps_ = 0;
  predicted_ = predicted;
  Mean& mean = predicted ? with_ : without_;
  // Each time afresh: what was measured with a colder cache or a shorter context does not compare.
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
  // Not even perfect predictions would repay: no need to look, for long.
  if (cost >= 0 && static_cast<double>(missed_ns_) < cost * rest_ && ++blindly_ < kBlindly) {
    rest_ = std::min(4 * rest_, options_.longest);
    resting_ = rest_;
  }
  BeginLook(options_.measured ? std::max(1, options_.look / 2) : options_.look);
}

}  // namespace moert
