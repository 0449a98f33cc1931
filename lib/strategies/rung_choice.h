// Which of several versions every expert should have, where what they lose and what they take is
// known: the choice of a plan (MxMoE Sec. 4), fast enough to be made again and again.
#ifndef MOERT_LIB_STRATEGIES_RUNG_CHOICE_H_
#define MOERT_LIB_STRATEGIES_RUNG_CHOICE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace moert {

/// The assumed uses of an expert: at least and at most.
struct UseBand {
  double least = 0;
  double most = 0;
};

/// A version's rung counts from that of the fewest bytes, 0.
class RungChoice {
 public:
  /// [expert][version, most bytes first]: what a use in it loses, and bytes. Versions that others
  /// beat in both, or mixtures of others would, are chosen for nobody.
  RungChoice(absl::Span<const double> loss, absl::Span<const int64_t> bytes, int versions);

  /// The rungs that lose least within `capacity` bytes, up to what one more step would take. A byte
  /// has a price, the same for all: an expert goes up while even its least use saves more than its
  /// bytes cost, and down only when its most use saves less. In between it keeps the rung that it
  /// has in `rungs`. The rest is spent on the steps that save most for a byte.
  std::vector<uint8_t> Choose(absl::Span<const UseBand> uses, absl::Span<const uint8_t> rungs,
                              int64_t capacity) const;

 private:
  struct Step {
    uint8_t rung = 0;   // that it leads to
    int64_t bytes = 0;  // of that rung
    double saved = 0;   // loss of a use for every byte of the way there
  };
  struct Expert {
    int first = 0, count = 0;  // of steps_, savings fall
  };

 public:
  /// Four steps in lists that grew, and as many candidates that a choice sorts.
  static constexpr int64_t kBytesPerExpert =
      3 * sizeof(Expert) + (2 * 3 + 1) * 4 * sizeof(Step) + 32;

 private:
  /// The highest step that is no higher than a rung.
  int TakenAt(const Expert& expert, int rung) const;
  double Saved(const Expert& expert, int step) const { return steps_[expert.first + step].saved; }
  /// Steps taken at a price, from `taken`.
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
