// PrefetchControl: finds out by experiment whether prefetching pays, or what a better prediction
// costs, and stops it when it does not (design rule 9). Every cause of a loss is in the measured
// times: wrong guesses on the link, useful experts evicted, cores taken from the computation.
//
// Decode steps run in the mode that has proven better, on to begin with. Now and then a few of them
// run in the other mode; their mean time is compared with that of the same number just before and
// just after, so that slow drifts cancel. A mode that won clearly over several such trials takes
// over. Trials become rarer while they confirm what is known.
#ifndef MOERT_LIB_PREFETCH_PREFETCH_CONTROL_H_
#define MOERT_LIB_PREFETCH_PREFETCH_CONTROL_H_

#include <cstdint>
#include <vector>

namespace moert {

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

}  // namespace moert

#endif  // MOERT_LIB_PREFETCH_PREFETCH_CONTROL_H_
