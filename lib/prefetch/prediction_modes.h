// PredictionModes: whether a step predicts, and from what: three controls by measured time, one
// experiment at a time, since steps compare only where all else is the same.
#ifndef MOERT_LIB_PREFETCH_PREDICTION_MODES_H_
#define MOERT_LIB_PREFETCH_PREDICTION_MODES_H_

#include <array>
#include <cstdint>

#include "moert/policy.h"
#include "moert/prefetcher.h"
#include "prefetch/prediction_source.h"
#include "prefetch/prediction_yield.h"
#include "prefetch/prefetch_control.h"

namespace moert {

class PredictionModes {
 public:
  explicit PredictionModes(int layers);

  /// Whether the step of the phase that runs or comes next predicts, and asks the host for it.
  bool predicting(Phase phase) const;
  bool asks() const { return source_.asks(); }
  /// The host's answer for a layer took `ns`.
  void Asked(int64_t ns) { source_.Asked(ns); }
  /// Counts what predictions of a phase gain and miss.
  PredictionYield* yield(Phase phase) { return &yields_[static_cast<int>(phase)]; }

  /// A step of `rows` tokens took `ns`, stalled_ns of it waiting. Updates stats of decode steps.
  void StepDone(Phase phase, int64_t rows, int64_t ns, int64_t stalled_ns, PrefetchStats* stats);
  /// Whether decode steps may count on prefetches: not on what is only tried now and then.
  bool counts() const;

 private:
  const int layers_;
  PrefetchControl control_;
  PredictionSource source_;
  std::array<PredictionYield, 2> yields_;  // by phase
};

}  // namespace moert

#endif  // MOERT_LIB_PREFETCH_PREDICTION_MODES_H_
