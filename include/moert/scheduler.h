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

namespace moert {

/// Expert indices of one layer call; every expert with tokens is in exactly one list.
struct LayerPlan {
  std::vector<int32_t> ready;            // present in some version: the first wave
  std::vector<int32_t> load;             // missing or in flight, in the order they are fetched
  std::vector<int32_t> cpu;              // missing, for the CPU executor beside the fast tier
  int64_t cpu_ns = 0;                    // modelled time of `cpu`
  Backfill backfill = Backfill::kNever;  // of `cpu`, behind the call
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

/// What a scheduler counted since it was made.
struct SchedulerStats {
  int64_t slots_low = 0;  // token x k slots answered by a lower version than intended
  double mass_low = 0;    // routing weight of these, as it entered the sum
  int64_t cpu_computed = 0;
  int64_t cpu_computed_late = 0;  // of these, experts that were on their way
  int64_t fills = 0;              // loads behind a call of what the CPU had computed for it
  // Modelled time of the two sides, summed over layers.
  int64_t balance_load_ns = 0;
  int64_t balance_cpu_ns = 0;
  int64_t policy_fallbacks = 0;
};

class Scheduler {
 public:
  /// All borrowed; a null policy loads every miss.
  Scheduler(const MoeModelSpec* model, PlacementPolicy* policy, const HardwareProfile* profile,
            ExpertStore* store, CpuOffload cpu);

  /// Looks up the experts of a routing as a step of `epoch` sees them and classifies them. Ready
  /// experts are pinned; the caller unpins them when they are multiplied. Misses with more tokens
  /// are fetched earlier (Fate Sec. 4.3), equal ones by index.
  void Plan(const PolicyContext& context, int64_t epoch, const RoutingResult& routing,
            LayerPlan* plan);

  /// Counts a past call that read every expert of its routing without a plan.
  void CountAnswered(int layer, const RoutingResult& routing);
  /// Counts `calls` past calls that read `key` without a plan, for `slots` slots of summed weight
  /// `mass`.
  void CountAnswered(ExpertKey key, int64_t slots, int64_t calls, double mass);

  /// Behind a call: begins to load what the CPU computed for it, if the policy wants that.
  void Backfill(const PolicyContext& context, const LayerPlan& plan);

  /// The experts of plan.cpu took the CPU so long. Only a CPU that is used is measured: while
  /// misses that it could take are all loaded, it is thought a little faster each time, until it is
  /// tried again. A trial counts more than other measurements, so that they are rare where the link
  /// wins.
  void ObserveCpuTime(const LayerPlan& plan, int64_t cpu_ns);

  SchedulerStats stats() const { return stats_; }

 private:
  /// Counts the slots of experts that low_ marks.
  void CountLow(const RoutingResult& routing);
  /// Asks the policy where the misses go that are not on their way, and moves those it gives to the
  /// CPU from plan->load to plan->cpu.
  void Place(const PolicyContext& context, const RoutingResult& routing, LayerPlan* plan);
  int64_t LinkBusyNs(const PolicyContext& context) const;

  const MoeModelSpec* model_;
  PlacementPolicy* policy_;
  const HardwareProfile* profile_;
  ExpertStore* store_;
  SchedulerStats stats_;
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
