// Scheduler: what happens to each expert a layer needs (design "plan").
#ifndef MOERT_SCHEDULER_H_
#define MOERT_SCHEDULER_H_

#include <cstdint>
#include <vector>

#include "moert/expert_store.h"
#include "moert/policy.h"
#include "moert/profile.h"
#include "moert/router.h"
#include "moert/stats.h"

namespace moert {

/// Expert indices of one layer call; every expert with tokens is in exactly one list.
struct LayerPlan {
  std::vector<int32_t> ready;  // present in some version: the first wave
  std::vector<int32_t> load;   // missing or in flight, in the order they are fetched
  std::vector<int32_t> cpu;    // missing, for the CPU executor beside the fast tier
  int64_t cpu_ns = 0;          // modelled time of `cpu`
};

class Scheduler {
 public:
  /// All borrowed; a null policy loads every miss. `cpu_executor`: whether misses may be computed
  /// by a CPU beside the fast tier.
  Scheduler(const MoeModelSpec* model, PlacementPolicy* policy, const HardwareProfile* profile,
            ExpertStore* store, EngineStats* stats, bool cpu_executor);

  /// Classifies the experts of a routing as a step of `epoch` sees them, and counts lookups, hits
  /// and low answers. Ready experts are pinned; the caller unpins them when they are multiplied.
  /// Misses with more tokens are fetched earlier (Fate Sec. 4.3), equal ones by index.
  void Plan(const PolicyContext& context, int64_t epoch, const RoutingResult& routing,
            LayerPlan* plan);

 private:
  /// Asks the policy where the misses go that are not on their way, and moves those it gives to the
  /// CPU from plan->load to plan->cpu.
  void Place(const PolicyContext& context, const RoutingResult& routing, LayerPlan* plan);

  const MoeModelSpec* model_;
  PlacementPolicy* policy_;
  const HardwareProfile* profile_;
  ExpertStore* store_;
  EngineStats* stats_;
  const bool cpu_executor_;
  std::vector<MissView> misses_;  // scratch
  std::vector<uint8_t> low_;      // [E]: answered low
  std::vector<float> mass_;       // scratch, [E]
};

}  // namespace moert

#endif  // MOERT_SCHEDULER_H_
