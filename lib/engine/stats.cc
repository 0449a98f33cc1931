#include "moert/stats.h"

namespace moert {
namespace {

template <typename T, typename... Members>
void Subtract(EngineStats* stats, const EngineStats& before, T EngineStats::*first,
              Members... rest) {
  stats->*first -= before.*first;
  ((stats->*rest -= before.*rest), ...);
}

}  // namespace

EngineStats StatsSince(const EngineStats& now, const EngineStats& before) {
  using S = EngineStats;
  EngineStats s = now;
  Subtract(&s, before, &S::lookups, &S::hits_resident, &S::hits_prefetched, &S::late, &S::loads,
           &S::low_loads, &S::bytes_loaded, &S::evictions, &S::low_answers, &S::cpu_computed,
           &S::upgrades, &S::fills);
  Subtract(&s, before, &S::prefetch_issued, &S::prefetch_cancelled, &S::prefetch_useful,
           &S::prefetch_active, &S::prefetch_top_score, &S::prefetch_bytes);
  Subtract(&s, before, &S::prefetch_predicted, &S::prefetch_recalled,
           &S::prefetch_recalled_in_window, &S::prefetch_disabled_steps,
           &S::predictions_resident_forward, &S::predictions_next_gate, &S::prefetch_trials,
           &S::prefetch_switches);
  Subtract(&s, before, &S::slots, &S::slots_substituted, &S::slots_low, &S::model_lookups,
           &S::model_hits);
  Subtract(&s, before, &S::mass, &S::mass_substituted, &S::mass_low);
  Subtract(&s, before, &S::promotions, &S::demotions, &S::deferred);
  Subtract(&s, before, &S::balance_load_ns, &S::balance_cpu_ns, &S::policy_fallbacks);
  Subtract(&s, before, &S::stall_miss_ns, &S::stall_queue_ns, &S::stall_staging_ns,
           &S::stall_cpu_ns, &S::host_syncs);
  return s;
}

}  // namespace moert
