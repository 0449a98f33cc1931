// PlacedIds: the routing of a group whose experts are placed. Selects the ids that a rank computes,
// and counts them.
#ifndef MOERT_LIB_PARALLEL_PLACED_IDS_H_
#define MOERT_LIB_PARALLEL_PLACED_IDS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "exec/row_kernels.h"
#include "moert/engine.h"
#include "moert/model.h"
#include "moert/parallel/placement.h"

namespace moert {

class PlacedIds {
 public:
  /// `device`: selects ids in device memory; null: they are in host memory.
  PlacedIds(const MoeModelSpec& model, int rank, std::unique_ptr<OwnedIds> device);

  absl::Status Set(const ExpertPlacement& placement);
  /// Returns `routing` of `rows` tokens with -1 for ids that this rank does not compute. Valid
  /// until the next call.
  absl::StatusOr<RoutedInput> Keep(int layer, int64_t rows, const RoutedInput& routing,
                                   void* stream);
  /// Counts ids in host memory that this rank computes.
  void Count(int layer, absl::Span<const int32_t> ids);
  /// Takes the counts of all layers' experts since the last call.
  absl::StatusOr<std::vector<int64_t>> TakeCounts();

 private:
  size_t First(int layer) const { return first_[layer]; }
  size_t ExpertsOf(int layer) const {
    return first_[static_cast<size_t>(layer) + 1] - First(layer);
  }

  const int rank_;
  const std::unique_ptr<OwnedIds> device_;
  std::vector<size_t> first_;  // index of each layer's first expert; the last entry is the total
  std::vector<OwnerShare> shares_;
  std::vector<int64_t> counts_;
  std::vector<int32_t> kept_;
};

}  // namespace moert

#endif  // MOERT_LIB_PARALLEL_PLACED_IDS_H_
