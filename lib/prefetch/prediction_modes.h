// PredictionModes: decides whether a step predicts, and from which input. Three controls decide by
// measured times. They experiment one at a time, since steps are comparable only if nothing else
// changes.
#ifndef MOERT_LIB_PREFETCH_PREDICTION_MODES_H_
#define MOERT_LIB_PREFETCH_PREDICTION_MODES_H_

#include <array>
#include <cstdint>
#include <vector>

#include "base/ewma.h"
#include "moert/policy.h"
#include "moert/prefetcher.h"

namespace moert {

/// PrefetchControl: finds out by experiment whether prefetching pays, or what a better prediction
/// costs, and stops it when it does not (design rule 9). Every cause of a loss is in the measured
/// times: wrong guesses on the link, useful experts evicted, cores taken from the computation.
///
/// Decode steps run in the mode that has proven better, at first with prefetching on. Now and then
/// a few steps run in the other mode. Their mean time is compared with that of as many steps just
/// before and just after, so that slow drifts cancel. A mode that won clearly over several such
/// trials takes over. Trials become rarer while they confirm the current mode.
class PrefetchControl {
 public:
  /// `on`: the mode that is taken to be better at first.
  explicit PrefetchControl(bool on = true) : proven_(on) {}

  /// Whether the running or next step is in mode "on".
  bool on() const { return stage_ == Stage::kTrial ? !proven_ : proven_; }
  /// Whether mode "off" has proven better.
  bool disabled() const { return !proven_; }
  /// Whether a trial is in progress, including the steps before and after it.
  bool trying() const { return stage_ != Stage::kGap; }
  int64_t trials() const { return trials_; }
  int64_t switches() const { return switches_; }

  /// Reports that a decode step of `rows` tokens took `ns`: all layers, including waiting.
  void StepDone(int64_t rows, int64_t ns);

  /// Drops a running trial, because the next steps are not comparable with those before.
  void Abandon() { Rest(gap_); }

  static constexpr int kBlock = 8;      // steps of a trial, and of the blocks before and after it
  static constexpr int kSettle = 2;     // steps not measured: the cache is still the other mode's
  static constexpr int kFirstGap = 64;  // steps between trials
  static constexpr int kLongestGap = 8192;
  static constexpr int kTrials = 4;  // least trials for a verdict; twice as many are remembered

 private:
  enum class Stage { kGap, kBefore, kTrial, kAfter };

  void EndTrial();
  void Rest(int steps);

  bool proven_;
  Stage stage_ = Stage::kGap;
  int left_ = kFirstGap;  // steps left of the stage
  int gap_ = kFirstGap;
  int64_t rows_ = 0;
  double before_ns_ = 0, trial_ns_ = 0, after_ns_ = 0;
  int64_t trials_ = 0, switches_ = 0;
  std::vector<double> gains_;  // relative gains of the other mode, the latest last
};

/// PredictionYield: finds out whether the predictions of one phase pay for their cost, and pauses
/// (rests) if they do not. A prediction costs its layer one more gate and the host a ranking, even
/// without effect: on an H200 a quarter of a decode step, which is wasted if hardly anything is
/// missing.
///
/// Both sides are measured. Cost: the time of steps without their waiting, with predictions minus
/// without. It is known once some steps have run without (a rest, or a trial of PrefetchControl).
/// Gain: for every prefetch that the routing used, the part of the transfer that fitted its window,
/// which is the most that can be saved; minus the rest of wrong prefetches that a layer's own loads
/// had to wait for. Phases whose steps are too few and too different to compare are judged by the
/// number of transfers.
class PredictionYield {
 public:
  struct Options {
    int look = 16;         // steps of the first measurement ("look"), and of the shortest rest
    int longest = 512;     // steps of the longest rest
    bool measured = true;  // false: judged by the number of transfers alone
  };

  PredictionYield(const Options& options, int layers);

  /// Whether the running or next step makes no predictions.
  bool resting() const { return resting_ > 0; }

  /// Reports that a transfer was started for a prediction.
  void Admitted() { ++admitted_; }
  /// Reports that the routing used such a transfer, `ns` of which fitted its window. Negative: a
  /// wrong prefetch held the link for so long.
  void Saved(int64_t ns) { saved_ns_ += ns; }
  /// Reports that a layer waited, of which perfect predictions would have saved `ns`.
  void Missed(int64_t ns) { missed_ns_ += ns; }
  /// Whether predictions did not pay at the last look.
  bool doubted() const { return rest_ > 0; }
  /// Reports a step of `rows` tokens that took step_ns, stalled_ns of it waiting, with predictions
  /// or without (for a rest or any other reason).
  void StepDone(int64_t rows, int64_t step_ns, int64_t stalled_ns, bool predicted);

  /// The cost of a step's predictions, ns; negative: not known.
  double cost_ns() const;

  static constexpr int kSettle = 1;    // steps of a new mode that are not measured
  static constexpr int kKnown = 4;     // steps needed for a mean
  static constexpr int kBlindly = 16;  // most rests in a row without a look between them

 private:
  using Mean = Ewma<running_mean::kStepTime>;

  void EndLook();
  /// The number of steps to rest so that looks cost one hundredth of the time.
  int RestForPrice(double cost) const;
  void EndRest();
  void BeginLook(int steps);

  Options options_;
  int64_t worth_;  // transfers in `look` steps that make predictions pay
  int64_t rows_ = 0;
  bool predicted_ = false;  // whether the last step predicted
  int mode_steps_ = 0;      // steps since that changed
  Mean with_, without_;     // time of a step without waiting, with and without predictions
  Mean all_;                // whole time of a step without predictions

  int left_ = 0;     // steps left of the look
  int looked_ = 0;   // its steps so far
  int resting_ = 0;  // steps left of the rest
  int rest_ = 0;     // length of the last rest; grows while looks find no gain
  int blindly_ = 0;  // rests since the last look
  int64_t admitted_ = 0, saved_ns_ = 0, missed_ns_ = 0;  // in this look or rest
};

/// PredictionSource: decides whether decode steps ask the host for the next layer's input
/// (StepInfo::predict_next), or apply the next gate to this layer's input. The host's answer is
/// right more often, but costs the host an attention.
///
/// If that cost is negligible, the host is asked. Otherwise a few steps without asking show how
/// long layers wait. A host that is cheap compared with the waiting is asked from then on, and a
/// PrefetchControl finds out by the steps' times whether that was right.
class PredictionSource {
 public:
  /// Whether the running or next step asks the host.
  bool asks() const;
  /// Reports that the answer for a layer took `ns` of the step.
  void Asked(int64_t ns) { spent_ns_ += ns; }

  /// Reports that a decode step of `rows` tokens with predictions took `ns` for all layers,
  /// stalled_ns of it waiting.
  void StepDone(int64_t rows, int64_t ns, int64_t stalled_ns);
  /// Ignores a step that cannot be compared: predictions rested, or another control had a trial.
  void Skip() { spent_ns_ = 0; }
  /// Drops a running trial, because the next steps are not comparable with those before.
  void Abandon() { trial_.Abandon(); }
  /// Called when predictions did not pay. Returns whether the cost of asking may be the reason. If
  /// so, the host is not asked from then on, until a trial proves otherwise.
  bool Doubt();

  /// Whether a trial is in progress, whose steps are not comparable with others.
  bool trying() const { return stage_ == Stage::kTried && trial_.trying(); }

  static constexpr int kLook = 4;    // steps that measure the cost of asking
  static constexpr int kWeigh = 32;  // steps that measure the waiting

 private:
  enum class Stage { kLook, kWeigh, kTried };

  void Begin();

  Stage stage_ = Stage::kLook;
  int left_ = kLook;  // steps left of the stage
  int64_t rows_ = 0;
  int64_t spent_ns_ = 0;  // time of asking in this step
  Ewma<running_mean::kAsking> cost_;
  Ewma<running_mean::kStepTime> all_, waited_;
  PrefetchControl trial_;  // mode "on": asks
};

class PredictionModes {
 public:
  explicit PredictionModes(int layers);

  /// Whether the running or next step of the phase predicts, and whether it asks the host.
  bool predicting(Phase phase) const;
  bool asks() const { return source_.asks(); }
  /// Reports that the host's answer for a layer took `ns`.
  void Asked(int64_t ns) { source_.Asked(ns); }
  /// Collects the gains and misses of a phase's predictions.
  PredictionYield* yield(Phase phase) { return &yields_[static_cast<int>(phase)]; }

  /// Reports a step of `rows` tokens that took `ns`, stalled_ns of it waiting. Updates the
  /// statistics of decode steps.
  void StepDone(Phase phase, int64_t rows, int64_t ns, int64_t stalled_ns, PrefetchStats* stats);
  /// Whether decode steps may rely on prefetches. False if prefetches are only tried now and then.
  bool counts() const;

 private:
  const int layers_;
  PrefetchControl control_;
  PredictionSource source_;
  std::array<PredictionYield, 2> yields_;  // by phase
};

}  // namespace moert

#endif  // MOERT_LIB_PREFETCH_PREDICTION_MODES_H_
