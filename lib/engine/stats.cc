// Statistics of an engine, collected from the counters of its parts.
#include "moert/stats.h"

#include <algorithm>

#include "engine/engine_parts.h"

namespace moert {
namespace {

void Add(const RouterStats& router, EngineStats* s) {
  s->slots = router.slots;
  s->slots_substituted = router.slots_substituted;
  s->mass = router.mass;
  s->mass_substituted = router.mass_substituted;
  s->model_lookups = router.model_lookups;
  s->model_hits = router.model_hits;
  s->worst_slot_share = std::max(s->worst_slot_share, router.worst_slot_share);
  s->worst_mass_share = std::max(s->worst_mass_share, router.worst_mass_share);
}

void Add(const StoreStats& store, EngineStats* s) {
  s->lookups = store.lookups;
  s->hits_resident = store.hits_resident;
  s->hits_prefetched = store.hits_prefetched;
  s->late += store.late;
  s->low_answers = store.low_answers;
  s->loads = store.loads;
  s->low_loads = store.low_loads;
  s->bytes_loaded = store.bytes_loaded;
  s->prefetch_bytes = store.prefetch_bytes;
  s->prefetch_useful = store.prefetch_useful;
  s->upgrades = store.upgrades;
  s->evictions += store.evictions;
  s->policy_fallbacks += store.policy_fallbacks;
}

void Add(const PrefetchStats& prefetch, EngineStats* s) {
  s->prefetch_issued = prefetch.issued;
  s->prefetch_cancelled = prefetch.cancelled;
  s->prefetch_active = prefetch.active;
  s->prefetch_top_score = prefetch.top_score;
  s->prefetch_predicted = prefetch.predicted;
  s->prefetch_recalled = prefetch.recalled;
  s->prefetch_recalled_in_window = prefetch.recalled_in_window;
  s->prefetch_disabled = prefetch.disabled;
  s->prefetch_disabled_steps = prefetch.disabled_steps;
  s->prefetch_trials = prefetch.trials;
  s->prefetch_switches = prefetch.switches;
  s->policy_fallbacks += prefetch.policy_fallbacks;
}

void Add(const PlanStats& scheduler, EngineStats* s) {
  s->slots_low = scheduler.slots_low;
  s->mass_low = scheduler.mass_low;
  s->worst_low_share = scheduler.worst_low_share;
  s->cpu_computed = scheduler.cpu_computed;
  s->cpu_taken_back = scheduler.cpu_taken_back;
  s->cpu_below = scheduler.cpu_below;
  s->cpu_read_bytes = scheduler.cpu_read_bytes;
  s->late -= scheduler.cpu_computed_late;
  s->fills = scheduler.fills;
  s->balance_load_ns = scheduler.balance_load_ns;
  s->balance_cpu_ns = scheduler.balance_cpu_ns;
  s->policy_fallbacks += scheduler.policy_fallbacks;
}

void Add(const PrecisionStats& precision, EngineStats* s) {
  s->promotions = precision.promotions;
  s->demotions = precision.demotions;
  s->deferred = precision.deferred;
  s->evictions += precision.evictions;
  s->policy_fallbacks += precision.policy_fallbacks;
}

void Add(const LayerStats& layer, EngineStats* s) {
  s->predictions_resident_forward = layer.predictions_resident_forward;
  s->predictions_next_gate = layer.predictions_next_gate;
  s->stall_miss_ns = layer.stall_miss_ns;
  s->stall_queue_ns = layer.stall_queue_ns;
  s->stall_cpu_ns = layer.stall_cpu_ns;
  s->policy_fallbacks += layer.policy_fallbacks;
}

void Add(const ExecutorStats& executor, EngineStats* s) {
  s->host_syncs = executor.host_syncs;
  s->graph_captured = executor.graph_captured;
  s->pinned_swaps = executor.pinned_swaps;
  s->pinned_bytes = executor.pinned_bytes;
  s->worst_slot_share = std::max(s->worst_slot_share, executor.worst_slot_share);
  s->worst_mass_share = std::max(s->worst_mass_share, executor.worst_mass_share);
  s->worst_low_share = std::max(s->worst_low_share, executor.worst_low_share);
}

}  // namespace

EngineStats CollectStats(const EngineParts& parts, int64_t fixed_bytes) {
  EngineStats s;
  s.budget_bytes = parts.budget->limit();
  s.peak_bytes = parts.budget->peak();
  s.fixed_bytes = fixed_bytes;
  s.pool_bytes = parts.budget->used() - fixed_bytes;
  Add(parts.router->stats(), &s);
  Add(parts.store->stats(), &s);
  Add(parts.prefetcher->stats(), &s);
  Add(parts.scheduler->stats(), &s);
  if (parts.versions != nullptr) Add(parts.versions->stats(), &s);
  Add(parts.runner->stats(), &s);
  Add(parts.executor->stats(), &s);
  return s;
}

int64_t CollectFallbacks(const EngineParts& parts) {
  return parts.store->stats().policy_fallbacks + parts.prefetcher->stats().policy_fallbacks +
         parts.scheduler->stats().policy_fallbacks + parts.runner->stats().policy_fallbacks +
         (parts.versions != nullptr ? parts.versions->stats().policy_fallbacks : 0);
}

}  // namespace moert
