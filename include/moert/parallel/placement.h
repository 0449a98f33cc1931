// Placement: which ranks compute which experts of a group whose placement may change while it runs,
// and how to choose it by use. Popular experts may have several owners.
#ifndef MOERT_PARALLEL_PLACEMENT_H_
#define MOERT_PARALLEL_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/model.h"

namespace moert {

struct ExpertPlacement {
  int ranks = 1;
  /// [L][E]: the owners of each expert, ascending, at least one. With n owners, owner i computes
  /// the expert for the tokens t with t % n == i.
  std::vector<std::vector<std::vector<int32_t>>> owners = {};
};

/// InvalidArgument names the layer and expert whose owners are missing, out of range or not
/// ascending.
absl::Status CheckPlacement(const MoeModelSpec& model, const ExpertPlacement& placement);

struct ReplicaOptions {
  /// [ranks]: the most experts of each layer that the rank owns, at most the layer's number. The
  /// sum is at least that number; any surplus holds further copies of the heaviest experts. Empty:
  /// the fewest, one copy of each expert.
  std::vector<int> capacity = {};
  /// The load of shared experts on rank 0 in each layer that has some.
  double shared_load = 0;
  /// A layer keeps the owners it has here unless a change lowers the most loaded rank's load by
  /// more than `gain` of it, because moved experts must be loaded again. Null: nothing is kept.
  const ExpertPlacement* previous = nullptr;
  double gain = 0.05;
};

/// Chooses owners by what each expert costs: loads[l][e], 0 or more, in any unit
/// (ExpertParallel::TakeLoads measures them). Ranks get nearly the same load. If that lowers the
/// highest load, the heaviest experts get copies, as far as there is room. Deterministic.
/// InvalidArgument names what does not fit.
absl::StatusOr<ExpertPlacement> PlaceReplicas(const MoeModelSpec& model,
                                              absl::Span<const std::vector<double>> loads,
                                              int ranks, const ReplicaOptions& options);

}  // namespace moert

#endif  // MOERT_PARALLEL_PLACEMENT_H_
