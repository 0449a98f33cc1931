// Scheduler: decides which experts that a layer misses are loaded over the link, and which a CPU
// beside the fast tier computes meanwhile (importance paper Sec. 5.4, Algorithm 2). The placement
// policy decides; the scheduler models the cost of both sides for it from a hardware profile that
// measurements correct, checks the policy's answer and counts. It works with a host's own expert
// store: it knows nothing of records. Not thread-safe: one call at a time. Nothing blocks.
#ifndef MOERT_SCHEDULER_H_
#define MOERT_SCHEDULER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/policy.h"
#include "moert/tools/profile.h"

namespace moert {

/// An expert that a layer call needs and that the fast tier does not have.
struct Miss {
  int32_t expert = 0;     // in [0, E)
  int32_t tokens = 1;     // of the call that chose it
  float mass = 0;         // their summed routing weight
  int64_t bytes = 0;      // of the transfer
  bool arriving = false;  // a transfer of it is on its way
  bool cpu = false;       // the CPU beside the fast tier could compute it
  float low_cost = -1;    // as MissView::low_cost
};

/// Work that is on the link already.
struct LinkLoad {
  int64_t transfers = 0;  // that have not arrived
  int64_t bytes = 0;      // of one of them
};

struct PlacedMisses {
  std::vector<Placement> placements = {};  // one a miss, in order
  int64_t cpu_ns = 0;                      // modelled time of the misses given to the CPU
  Backfill backfill = Backfill::kNever;    // of experts that the CPU computed
};

/// Counts of a scheduler since it was made.
struct SchedulerStats {
  int64_t cpu_computed = 0;
  int64_t cpu_computed_late = 0;  // of these, experts that were in flight
  int64_t balance_load_ns = 0;    // modelled time of loads, summed over calls
  int64_t balance_cpu_ns = 0;     // likewise of the CPU
  int64_t policy_fallbacks = 0;   // answers of the policy that were invalid: all misses are loaded
};

struct SchedulerOptions {
  HardwareProfile profile = {};  // rates of the link and of the CPU, see LoadProfile
  /// Name of the stored version that the CPU multiplies, for the profile's rates; empty: any.
  std::string cpu_version = {};
  /// ObserveTransfer and ObserveCpuTime correct the profile's rates; false: they are exact.
  bool measured = true;
};

class Scheduler {
 public:
  /// `policy` is borrowed; null: every miss is loaded. InvalidArgument names the field of the
  /// profile from which no time can be computed.
  static absl::StatusOr<std::unique_ptr<Scheduler>> Create(PlacementPolicy* policy,
                                                           SchedulerOptions options);
  ~Scheduler();

  /// Asks the policy, which may read context.model. All misses are of one call of context.layer.
  PlacedMisses Place(const PolicyContext& context, absl::Span<const Miss> misses,
                     const LinkLoad& link = {});

  /// A transfer of `bytes` ran from started_ns to finished_ns, any clock. In order of finishing.
  void ObserveTransfer(int64_t bytes, int64_t started_ns, int64_t finished_ns);
  /// The CPU took took_ns for work that was modelled to take cpu_ns (PlacedMisses). Whenever the
  /// CPU gets no miss, it is assumed to be a little faster than before, until it is tried again.
  void ObserveCpuTime(int64_t cpu_ns, int64_t took_ns);

  SchedulerStats stats() const;

 private:
  struct Impl;
  explicit Scheduler(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace moert

#endif  // MOERT_SCHEDULER_H_
