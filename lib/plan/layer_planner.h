// LayerPlanner: decides what happens to each expert that a layer needs (design "plan"). It looks
// the experts up in the store and has a placement policy place the misses.
#ifndef MOERT_LIB_PLAN_LAYER_PLANNER_H_
#define MOERT_LIB_PLAN_LAYER_PLANNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "moert/policy.h"
#include "moert/router.h"
#include "moert/tools/profile.h"
#include "plan/miss_placer.h"
#include "route/substitution_ledger.h"
#include "rules/low_answers.h"
#include "store/versioned_store.h"

namespace moert {

/// Accounts for the share of each request's routing mass that low versions may answer, and did
/// answer. One layer call at a time: Begin, then Cost and Take for its experts, then End. A
/// request's mass is the routing weight that entered its sums; a call's own mass is added before
/// anything is answered low.
class LowAnswers {
 public:
  explicit LowAnswers(double max_share) : max_share_(max_share) {}

  /// Both arguments are borrowed until End.
  void Begin(const RoutingResult& routing, absl::Span<const int64_t> request_ids);
  /// As MissView::low_cost.
  float Cost(int32_t expert);
  /// Answers an expert low if all its requests stay within the bound. Returns whether it did.
  bool Take(int32_t expert);
  void End();

  /// The largest share that any request reached.
  double worst_share() const { return ledger_.worst_mass_share(); }

 private:
  SubstitutionAccount& LedgerOf(int64_t token) {
    return request_ids_.empty() ? ledger_.anonymous() : ledger_.Of(request_ids_[token]);
  }
  /// Numbers the requests of the call, and reads their accounts.
  void OpenAccounts(int64_t tokens);
  /// The slots of an expert.
  absl::Span<const int32_t> SlotsOf(int32_t expert);

  const double max_share_;
  SubstitutionLedger ledger_;
  const RoutingResult* routing_ = nullptr;
  absl::Span<const int64_t> request_ids_;
  LowCall call_;
  // Scratch.
  std::unordered_map<int64_t, int32_t> number_of_;
  std::vector<int32_t> account_of_;  // [tokens]
  std::vector<LowAccount> accounts_;
  std::vector<int32_t> slots_;
};

/// Expert indices of one layer call; every expert with tokens is in exactly one list.
struct LayerPlan {
  std::vector<int32_t> ready;            // present in some version: multiplied first
  std::vector<int32_t> load;             // missing or in flight, in the order they are fetched
  std::vector<int32_t> low;              // missing, answered by the low version that stands by
  std::vector<uint8_t> load_low;         // [E] 1: in `load`, to be loaded in the low version
  std::vector<int32_t> cpu;              // missing, for the CPU executor beside the fast tier
  int64_t cpu_ns = 0;                    // modelled time of `cpu`
  Backfill backfill = Backfill::kNever;  // whether to load skipped experts after the call
};

/// The CPU that may compute misses beside the fast tier.
struct CpuMisses {
  /// Calls of more rows never use the CPU, whatever the costs.
  static constexpr int64_t kMaxTokens = 512;

  /// Whether the CPU can multiply an expert now, in the best version served, for a call of `tokens`
  /// rows. Null: there is no such CPU.
  std::function<bool(ExpertKey key, int64_t tokens)> can_compute;
  /// Measured times of transfers, borrowed. If given, times of the CPU are corrected by measurement
  /// too (ObserveCpuTime). Null: the profile's times are used for both.
  const LinkEstimate* link = nullptr;
  /// Name of the version that the CPU multiplies, for the profile's rates.
  std::string version;
};

/// Counts of a planner since it was made.
struct PlanStats : SchedulerStats {
  int64_t slots_low = 0;       // token x k slots answered by a lower version than intended
  double mass_low = 0;         // routing weight of these, as it entered the sum
  double worst_low_share = 0;  // the largest share of any request, under a bound
  int64_t cpu_taken_back = 0;  // jobs of the CPU that a device took back
  int64_t cpu_below = 0;       // of cpu_computed: with records outside of pinned memory
  int64_t cpu_read_bytes = 0;  // bytes read for these
  int64_t fills = 0;           // loads after a call of experts that it did without
};

class LayerPlanner {
 public:
  /// All arguments are borrowed. A null policy loads every miss.
  LayerPlanner(PlacementPolicy* policy, const HardwareProfile* profile, VersionedStore* store,
               CpuMisses cpu);

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

  /// Adds a device's counts: low answers, fills, and experts given to the CPU.
  void CountServed(const ServedCount& count) {
    stats_.slots_low += count.slots_low;
    stats_.mass_low += count.mass_low;
    stats_.fills += count.fills;
    stats_.cpu_taken_back += count.cpu_taken_back;
    stats_.cpu_below += count.cpu_below;
    stats_.cpu_read_bytes += count.cpu_read_bytes;
    placer_.CountServed(count);
  }
  /// The current costs of a device's misses, as if all records had the same size.
  CpuCosts Costs() { return placer_.Costs(store_->layout({0, 0}, 0).bytes); }

  /// Called after a call: begins to load the experts that it did without, if the policy wants that.
  void Backfill(const PolicyContext& context, const LayerPlan& plan);

  /// Reports the measured time of the CPU for the experts of plan.cpu.
  void ObserveCpuTime(const LayerPlan& plan, int64_t cpu_ns) {
    placer_.ObserveCpuTime(plan.cpu_ns, cpu_ns);
  }

  PlanStats stats() const;

 private:
  /// Counts the slots of experts that low_ marks.
  void CountLow(const RoutingResult& routing);
  /// Asks the policy to place the misses, and moves those for the CPU from plan->load to plan->cpu,
  /// and those that a low version answers to plan->low.
  void Place(const PolicyContext& context, const RoutingResult& routing, LayerPlan* plan);

  VersionedStore* store_;
  const std::function<bool(ExpertKey key, int64_t tokens)> cpu_can_compute_;
  MissPlacer placer_;
  std::unique_ptr<LowAnswers> low_answers_;  // null: there are no low answers
  PlanStats stats_;
  std::vector<Miss> misses_;       // scratch
  std::vector<uint8_t> low_;       // [E]: answered low
  std::vector<int32_t> backfill_;  // scratch
  std::vector<float> mass_;        // scratch, [E]
};

/// The version that a transfer brings into a cache of several versions: the precision policy's
/// checked choice, as an index into the served versions. `counts` [E]: tokens of every expert of
/// the layer, true or predicted. `resident` >= 0: the version that is present and may be replaced.
/// Without a policy, or for an illegal answer (counted in *fallbacks): the present version, else 0,
/// the best.
int TransferVersion(PrecisionPolicy* policy, const PolicyContext& context, ExpertKey key,
                    absl::Span<const int32_t> counts, bool prefetch, int num_versions,
                    int64_t* fallbacks, int resident = -1);

}  // namespace moert

#endif  // MOERT_LIB_PLAN_LAYER_PLANNER_H_
