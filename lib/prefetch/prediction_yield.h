// PredictionYield: whether the predictions of one phase repay what they cost, and rests where they
// do not. A prediction costs its layer a gate more and the host a ranking even if nothing comes of
// it: on an H200 a quarter of a decode step, for nothing where hardly anything is missing.
//
// Both sides are measured. Cost: the time of a step without its waiting, with predictions less
// without, known once some steps have run without (a rest, or a trial of PrefetchControl). Gain: of
// every prefetch that the routing used, what its window held of the transfer; no more can be saved;
// less what was left of a wrong one that a layer's own loads had to wait for.
// Phases whose steps are too few and too different to compare go by the number of transfers.
#ifndef MOERT_LIB_PREFETCH_PREDICTION_YIELD_H_
#define MOERT_LIB_PREFETCH_PREDICTION_YIELD_H_

#include <cstdint>

#include "base/ewma.h"

namespace moert {

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

}  // namespace moert

#endif  // MOERT_LIB_PREFETCH_PREDICTION_YIELD_H_
