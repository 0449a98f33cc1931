// PredictionModes: whether a step predicts, and from what: three controls by measured time, one
// experiment at a time, since steps compare only where all else is the same.
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
/// Decode steps run in the mode that has proven better, on to begin with. Now and then a few of
/// them run in the other mode; their mean time is compared with that of the same number just before
/// and just after, so that slow drifts cancel. A mode that won clearly over several such trials
/// takes over. Trials become rarer while they confirm what is known.
class PrefetchControl {
 public:
  /// `on`: what is taken for better to begin with.
  explicit PrefetchControl(bool on = true) : proven_(on) {}

  /// Whether the step that runs or comes next does it.
  bool on() const { return stage_ == Stage::kTrial ? !proven_ : proven_; }
  /// True while not doing it is what has proven better.
  bool disabled() const { return !proven_; }
  /// A trial is under way: its steps and those beside it.
  bool trying() const { return stage_ != Stage::kGap; }
  int64_t trials() const { return trials_; }
  int64_t switches() const { return switches_; }

  /// A decode step of `rows` tokens took `ns`, all layers and all waiting.
  void StepDone(int64_t rows, int64_t ns);

  /// The next steps do not compare with those before: a trial that runs is forgotten.
  void Abandon() { Rest(gap_); }

  static constexpr int kBlock = 8;      // steps of a trial, and of each block beside it
  static constexpr int kSettle = 2;     // of them not measured: the cache still is the other mode's
  static constexpr int kFirstGap = 64;  // steps between trials
  static constexpr int kLongestGap = 8192;
  static constexpr int kTrials = 4;  // needed for a verdict, and remembered twice as many

 private:
  enum class Stage { kGap, kBefore, kTrial, kAfter };

  void EndTrial();
  void Rest(int steps);

  bool proven_;
  Stage stage_ = Stage::kGap;
  int left_ = kFirstGap;  // steps of the stage
  int gap_ = kFirstGap;
  int64_t rows_ = 0;
  double before_ns_ = 0, trial_ns_ = 0, after_ns_ = 0;
  int64_t trials_ = 0, switches_ = 0;
  std::vector<double> gains_;  // of the other mode, relative; latest last
};

/// PredictionYield: whether the predictions of one phase repay what they cost, and rests where they
/// do not. A prediction costs its layer a gate more and the host a ranking even if nothing comes of
/// it: on an H200 a quarter of a decode step, for nothing where hardly anything is missing.
///
/// Both sides are measured. Cost: the time of a step without its waiting, with predictions less
/// without, known once some steps have run without (a rest, or a trial of PrefetchControl). Gain: of
/// every prefetch that the routing used, what its window held of the transfer; no more can be saved;
/// less what was left of a wrong one that a layer's own loads had to wait for.
/// Phases whose steps are too few and too different to compare go by the number of transfers.
class PredictionYield {
 public:
  struct Options {
    int look = 16;         // steps of the first look, and of the shortest rest
    int longest = 512;     // steps of a rest
    bool measured = true;  // false: by the number of transfers alone
  };

  PredictionYield(const Options& options, int layers);

  /// The step that runs or comes next goes without predictions.
  bool resting() const { return resting_ > 0; }

  /// A transfer was started for a prediction.
  void Admitted() { ++admitted_; }
  /// The routing used one of them, `ns` of which fit its window. Negative: a wrong one held the
  /// link for so long.
  void Saved(int64_t ns) { saved_ns_ += ns; }
  /// A layer waited; perfect predictions would have saved `ns` of that.
  void Missed(int64_t ns) { missed_ns_ += ns; }
  /// Predictions did not repay when last looked at.
  bool doubted() const { return rest_ > 0; }
  /// A step of `rows` tokens took step_ns, stalled_ns of it waiting, with predictions or without
  /// (for a rest or any other reason).
  void StepDone(int64_t rows, int64_t step_ns, int64_t stalled_ns, bool predicted);

  /// The cost of a step's predictions, ns; negative: not known.
  double cost_ns() const;

  static constexpr int kSettle = 1;    // steps of a new mode that still are the other's
  static constexpr int kKnown = 4;     // steps that make a mean
  static constexpr int kBlindly = 16;  // rests in a row that were not ended by a look

 private:
  using Mean = Ewma<running_mean::kStepTime>;

  void EndLook();
  /// Steps to rest so that looks cost a hundredth of the time.
  int RestForPrice(double cost) const;
  void EndRest();
  void BeginLook(int steps);

  Options options_;
  int64_t worth_;  // transfers of `look` steps
  int64_t rows_ = 0;
  bool predicted_ = false;  // the last step
  int mode_steps_ = 0;      // since that changed
  Mean with_, without_;     // busy time of a step
  Mean all_;                // all of its time, without predictions

  int left_ = 0;     // steps of the look
  int looked_ = 0;   // so far
  int resting_ = 0;  // steps left of the rest
  int rest_ = 0;     // length of the last one; grows while looks find nothing
  int blindly_ = 0;
  int64_t admitted_ = 0, saved_ns_ = 0, missed_ns_ = 0;  // of the look or rest
};

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
