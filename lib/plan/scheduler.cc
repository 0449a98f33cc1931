#include "moert/scheduler.h"

#include <algorithm>

namespace moert {

Scheduler::Scheduler(const MoeModelSpec* model, PlacementPolicy* policy,
                     const HardwareProfile* profile, ExpertStore* store, EngineStats* stats)
    : model_(model), policy_(policy), profile_(profile), store_(store), stats_(stats) {}

void Scheduler::Plan(const PolicyContext& context, int64_t epoch, const RoutingResult& routing,
                     LayerPlan* plan) {
  plan->ready.clear();
  plan->load.clear();
  for (int32_t e = 0; e < routing.num_experts; ++e) {
    if (routing.counts[e] == 0) continue;
    const ExpertKey key{context.layer, e};
    ++stats_->lookups;
    const ExpertHandle handle = store_->Resolve(key, epoch);
    if (handle.record == nullptr) {
      stats_->late += store_->Arriving(key);
      plan->load.push_back(e);
      continue;
    }
    const bool prefetched = store_->Touch(key, routing.counts[e]);
    stats_->prefetch_useful += prefetched;
    if (handle.version > store_->intended(key)) {
      ++stats_->low_answers;
    } else {
      ++(prefetched ? stats_->hits_prefetched : stats_->hits_resident);
    }
    store_->Pin(key);
    plan->ready.push_back(e);
  }
  std::stable_sort(plan->load.begin(), plan->load.end(),
                   [&](int32_t a, int32_t b) { return routing.counts[a] > routing.counts[b]; });
}

}  // namespace moert
