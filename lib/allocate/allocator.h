// From a calibration file to a plan: which scheme each linear block gets (MxMoE, Sec. 4).
#ifndef MOERT_LIB_ALLOCATE_ALLOCATOR_H_
#define MOERT_LIB_ALLOCATE_ALLOCATOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "allocate/cost_table.h"
#include "allocate/multiple_choice.h"
#include "format/calibration.h"
#include "format/pack_manifest.h"

namespace moert {

/// What is decided together: a linear block (gate and up still tied, see below), all of an expert,
/// all experts of a layer.
enum class Granularity { kLinear, kExpert, kLayer };
enum class AllocationSolver { kRelaxation, kMilp };

struct AllocationOptions {
  int64_t capacity = 0;  // bytes of all records
  /// The capacity is cut among the layers by their weights, and each is a problem of its own.
  bool per_layer = false;
  Granularity granularity = Granularity::kLinear;
  bool untied = false;  // gate and up may differ: no shipped GPU kernel executes that
  double r = 1;
  /// L = sum of Delta^power. 1 is the paper's; 2 adds up errors as if they were independent.
  double power = 1;
  /// Delta over the norm of its block's output, so that layers count alike.
  bool relative = false;
  int64_t batch = 512;  // tokens, for T
  CostTable costs;
  std::vector<Scheme> schemes;  // candidates, a subset of the calibration's; empty: all of them
  AllocationSolver solver = AllocationSolver::kMilp;
  MilpOptions milp;
};

struct Allocation {
  PackVersion version;  // without a name
  int64_t bytes = 0;
  double stored_bits = 0;
  double loss = 0;
  double seconds = 0;  // T, a batch through all layers; 0 where the cost table lacks a scheme
  double gap = 0;      // the largest of the problems solved
};

absl::StatusOr<Allocation> Allocate(const Calibration& calibration,
                                    const AllocationOptions& options);

/// The summed Delta^power (and, with a table that has all schemes, T) of a version chosen
/// otherwise.
absl::StatusOr<Allocation> Predict(const Calibration& calibration, const AllocationOptions& options,
                                   const PackVersion& version);

/// Bytes that `bits` stored bits a weight come to.
int64_t CapacityOf(const MoeModelSpec& model, double bits);

}  // namespace moert

#endif  // MOERT_LIB_ALLOCATE_ALLOCATOR_H_
