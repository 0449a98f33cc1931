// RungChoice: chooses one of several versions for every expert, given their losses and bytes: the
// choice of a plan (MxMoE Sec. 4), fast enough to be repeated at run time.
#ifndef MOERT_LIB_STRATEGIES_RUNG_CHOICE_H_
#define MOERT_LIB_STRATEGIES_RUNG_CHOICE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace moert {

/// The assumed range of an expert's uses.
struct UseBand {
  double least = 0;
  double most = 0;
};

/// Rung 0 is the version of the fewest bytes.
class RungChoice {
 public:
  /// `loss`: loss of one use, `bytes`: bytes, both [expert][version, most bytes first]. A version
  /// is never chosen if another version, or a mixture of others, is better in both.
  RungChoice(absl::Span<const double> loss, absl::Span<const int64_t> bytes, int versions);

  /// The rungs with the least loss within `capacity` bytes, optimal up to the bytes of one more
  /// step. All experts pay the same price per byte. An expert goes up while even its least use
  /// saves more than the bytes cost, and down only when even its most use saves less. In between it
  /// keeps its rung of `rungs`. Remaining bytes are spent on the steps that save most per byte.
  std::vector<uint8_t> Choose(absl::Span<const UseBand> uses, absl::Span<const uint8_t> rungs,
                              int64_t capacity) const;

 private:
  struct Step {
    uint8_t rung = 0;   // the rung that the step leads to
    int64_t bytes = 0;  // bytes of that rung
    double saved = 0;   // loss of a use that each byte of the step saves
  };
  struct Expert {
    int first = 0, count = 0;  // its steps in steps_, by falling savings
  };

 public:
  /// For four steps in vectors that grew, and as many candidates that a choice sorts.
  static constexpr int64_t kBytesPerExpert =
      3 * sizeof(Expert) + (2 * 3 + 1) * 4 * sizeof(Step) + 32;

 private:
  /// The highest step that is no higher than a rung.
  int TakenAt(const Expert& expert, int rung) const;
  double Saved(const Expert& expert, int step) const { return steps_[expert.first + step].saved; }
  /// The number of steps taken at a price, starting from `taken`.
  int Priced(const Expert& expert, const UseBand& use, int taken, double price) const;
  int64_t Bytes(const Expert& expert, int taken) const {
    return steps_[expert.first + taken].bytes;
  }
  void SpendRest(absl::Span<const UseBand> uses, int64_t left, std::vector<int>* taken) const;

  std::vector<Expert> experts_;
  std::vector<Step> steps_;
};

}  // namespace moert

#endif  // MOERT_LIB_STRATEGIES_RUNG_CHOICE_H_
