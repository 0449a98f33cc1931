// Scheduler: what happens to each expert a layer needs (design "plan").
#ifndef MOERT_SCHEDULER_H_
#define MOERT_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <string>
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

class LinkEstimate;

/// What may compute misses beside the fast tier.
struct CpuOffload {
  /// Calls of more rows stay off the CPU, whatever costs say.
  static constexpr int64_t kMaxTokens = 512;

  /// Whether the CPU can multiply an expert now, in the best version served, for a call of `tokens`
  /// rows. Null: there is no such CPU.
  std::function<bool(ExpertKey key, int64_t tokens)> can_compute;
  /// What transfers take as measured, borrowed: then times of the CPU are corrected by measurement
  /// too (ObserveCpuTime). Null: the profile is right about both.
  const LinkEstimate* link = nullptr;
  /// Name of the version it multiplies, for the profile's rates.
  std::string version;
};

class Scheduler {
 public:
  /// All borrowed; a null policy loads every miss.
  Scheduler(const MoeModelSpec* model, PlacementPolicy* policy, const HardwareProfile* profile,
            ExpertStore* store, EngineStats* stats, CpuOffload cpu);

  /// Classifies the experts of a routing as a step of `epoch` sees them, and counts lookups, hits
  /// and low answers. Ready experts are pinned; the caller unpins them when they are multiplied.
  /// Misses with more tokens are fetched earlier (Fate Sec. 4.3), equal ones by index.
  void Plan(const PolicyContext& context, int64_t epoch, const RoutingResult& routing,
            LayerPlan* plan);

  /// The experts of plan.cpu took the CPU so long. Only a CPU that is used is measured: while
  /// misses that it could take are all loaded, it is thought a little faster each time, until it is
  /// tried again. A trial counts more than other measurements, so that they are rare where the link
  /// wins.
  void ObserveCpuTime(const LayerPlan& plan, int64_t cpu_ns);

 private:
  /// Asks the policy where the misses go that are not on their way, and moves those it gives to the
  /// CPU from plan->load to plan->cpu.
  void Place(const PolicyContext& context, const RoutingResult& routing, LayerPlan* plan);
  int64_t LinkBusyNs(const PolicyContext& context) const;

  const MoeModelSpec* model_;
  PlacementPolicy* policy_;
  const HardwareProfile* profile_;
  ExpertStore* store_;
  EngineStats* stats_;
  const CpuOffload cpu_;
  double cpu_scale_ = 1;  // measured over modelled
  bool cpu_measured_ = false;
  bool cpu_passed_over_ = false;  // since it was measured
  std::vector<MissView> misses_;  // scratch
  std::vector<uint8_t> low_;      // [E]: answered low
  std::vector<float> mass_;       // scratch, [E]
};

}  // namespace moert

#endif  // MOERT_SCHEDULER_H_
