// PredictionModes: whether a step predicts, and from what: three controls by measured time, one
// experiment at a time, since steps compare only where all else is the same.
#ifndef MOERT_LIB_PREFETCH_PREDICTION_MODES_H_
#define MOERT_LIB_PREFETCH_PREDICTION_MODES_H_

#include <array>
#include <cstdint>

#include "base/ewma.h"
#include "moert/policy.h"
#include "moert/prefetcher.h"
#include "prefetch/prediction_yield.h"
#include "prefetch/prefetch_control.h"

namespace moert {

/// PredictionSource: whether decode steps ask the host what the next layer's input will be
/// (StepInfo::predict_next), or put the next gate on this layer's input. The host's answer is right
/// more often, and costs it an attention.
///
/// Where that costs next to nothing the host is asked. Else a few steps without say how long layers
/// wait; a host that is cheap beside that is asked from then on, and a PrefetchControl finds out by
/// the time of the steps whether that was right.
class PredictionSource {
 public:
  /// Whether the step that runs or comes next asks.
  bool asks() const;
  /// The answer for a layer took `ns` of the step.
  void Asked(int64_t ns) { spent_ns_ += ns; }

  /// A decode step of `rows` tokens with predictions took `ns`, all layers and all waiting,
  /// stalled_ns of it waiting.
  void StepDone(int64_t rows, int64_t ns, int64_t stalled_ns);
  /// The step is no measure: predictions rested, or something else was tried.
  void Skip() { spent_ns_ = 0; }
  /// The next steps do not compare with those before.
  void Abandon() { trial_.Abandon(); }
  /// Predictions did not repay. Returns whether the host's part may be why; it is not asked from
  /// then on, until a trial says otherwise.
  bool Doubt();

  /// A trial is under way: its steps do not compare with others.
  bool trying() const { return stage_ == Stage::kTried && trial_.trying(); }

  static constexpr int kLook = 4;    // steps that say what asking costs
  static constexpr int kWeigh = 32;  // steps that say what waiting costs

 private:
  enum class Stage { kLook, kWeigh, kTried };

  void Begin();

  Stage stage_ = Stage::kLook;
  int left_ = kLook;  // steps of the stage
  int64_t rows_ = 0;
  int64_t spent_ns_ = 0;  // of this step
  Ewma<running_mean::kAsking> cost_;
  Ewma<running_mean::kStepTime> all_, waited_;
  PrefetchControl trial_;  // on: asks
};

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
