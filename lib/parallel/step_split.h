// How ranks that all hold every expert share a step: the split with the least expected time.
#ifndef MOERT_LIB_PARALLEL_STEP_SPLIT_H_
#define MOERT_LIB_PARALLEL_STEP_SPLIT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "exec/row_kernels.h"
#include "moert/parallel/collectives.h"
#include "moert/parallel/expert_parallel.h"
#include "moert/source/expert_source.h"

namespace moert {

/// The cost of an all-reduce: `seconds` for one row, and the rate for large ones.
struct AllReduceCost {
  double seconds = 0;
  double bytes_per_s = 0;
};

/// Times all-reduces of `few` floats and of `many`, in `data`. Collective: every rank gets the
/// slowest one's times.
absl::StatusOr<AllReduceCost> MeasureAllReduce(Collectives* group, float* data, int64_t few,
                                               int64_t many, void* stream);

/// Chooses by its arguments alone, so that ranks with the same arguments decide alike.
class SplitRule {
 public:
  /// Assumes that experts are in their first version.
  SplitRule(const ExpertSource& source, int ranks, const DeviceRates& rates,
            const AllReduceCost& exchange);

  /// The split of a step of `rows` rows of all ranks together, which exchanges values of
  /// `value_bytes` bytes.
  StepSplit Choose(TokenPlacement placement, int64_t rows, int64_t value_bytes) const;
  /// The expected seconds of all layers with one split.
  double Seconds(StepSplit split, TokenPlacement placement, int64_t rows,
                 int64_t value_bytes) const;

 private:
  struct Layer {
    double experts, top_k, hidden;
    double bytes;       // of one expert
    double operations;  // of one token in one expert
  };
  /// The seconds of a rank's products for a layer in a step of `all` rows.
  double Products(const Layer& layer, double all, StepSplit split) const;

  std::vector<Layer> layers_;
  const double ranks_;
  const DeviceRates rates_;
  const AllReduceCost exchange_;
};

}  // namespace moert

#endif  // MOERT_LIB_PARALLEL_STEP_SPLIT_H_
