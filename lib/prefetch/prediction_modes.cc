#include "prefetch/prediction_modes.h"

namespace moert {
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
