// From a calibration file to a plan: which scheme each linear block gets (MxMoE, Sec. 4).
#ifndef MOERT_OFFLINE_ALLOCATE_H_
#define MOERT_OFFLINE_ALLOCATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/offline/calibration.h"
#include "moert/offline/cost_table.h"
#include "moert/offline/pack.h"

namespace moert {

/// The unit of a decision: a linear block (gate and up still tied, see `untied`), a whole expert,
/// or all experts of a layer.
enum class Granularity { kLinear, kExpert, kLayer };
/// How a linear block's Delta counts as loss. Equal norms at different layers' outputs do not mean
/// equal losses of the model: every measure but kDelta, the paper's, weights layers against each
/// other.
enum class LossMeasure {
  kAuto,      // kEndToEnd where the calibration has it, else kRelative
  kDelta,     // Delta
  kRelative,  // Delta over the norm of its layer's output
  kEndToEnd,  // Delta squared, in nats per token that the model loses by it
};
enum class AllocationSolver {
  kRelaxation,  // Lagrangian: fast, with a bound on what it loses
  kMilp,        // CBC's branch and cut
};

struct MilpOptions {
  double gap = 1e-5;  // relative gap of the cost at which the solver stops
  double seconds = 120;
};

/// Whether this build has CBC.
bool HaveMilp();

struct AllocationOptions {
  int64_t capacity = 0;  // bytes of all records
  /// The capacity is divided among the layers by their weights; each layer is a problem of its own.
  bool per_layer = false;
  Granularity granularity = Granularity::kLinear;
  bool untied = false;  // gate and up may differ: no shipped GPU kernel executes that
  double r = 1;
  LossMeasure measure = LossMeasure::kAuto;
  /// L sums Delta, as measured, to this power; 2 adds errors as if they were independent. 0: 2 for
  /// kEndToEnd, else 1.
  double power = 0;
  /// If set, the plan ignores the loss: the worth of layers and blocks is drawn at random. A
  /// baseline to compare predictions with.
  std::optional<uint64_t> random_seed = {};
  int64_t batch = 512;  // tokens, for T
  CostTable costs = {};
  std::vector<Scheme> schemes = {};  // candidates, a subset of the calibration's; empty: all of
                                     // them
  AllocationSolver solver = AllocationSolver::kMilp;
  MilpOptions milp = {};
};

struct Allocation {
  PackVersion version = {};  // without a name
  int64_t bytes = 0;
  double stored_bits = 0;
  double loss = 0;
  double seconds = 0;  // T, a batch through all layers; 0 where the cost table lacks a scheme
  double gap = 0;      // the largest of the problems solved
};

absl::StatusOr<Allocation> Allocate(const Calibration& calibration,
                                    const AllocationOptions& options);

/// The measure that kAuto stands for with this calibration.
LossMeasure MeasureFor(const Calibration& calibration, LossMeasure measure);

/// The summed loss by the measure (and T, with a table that has all schemes) of a version that was
/// chosen otherwise.
absl::StatusOr<Allocation> Predict(const Calibration& calibration, const AllocationOptions& options,
                                   const PackVersion& version);

/// Bytes of all records at `bits` stored bits per weight.
int64_t CapacityOf(const MoeModelSpec& model, double bits);

}  // namespace moert

#endif  // MOERT_OFFLINE_ALLOCATE_H_
