// Counts of an engine since it was opened. A snapshot: plain values, owned by the caller. A lookup
// is one distinct (layer, expert) a layer call needs. It is a hit if the intended version is usable
// when the layer asks. `hits_resident` were there before, `hits_prefetched` were brought by a
// prefetch and are used for the first time. A prefetch still in flight is `late`, not a hit. With
// substitution, lookups count the experts finally used.
#ifndef MOERT_STATS_H_
#define MOERT_STATS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace moert {

struct EngineStats {
  // Memory, bytes. budget_bytes: the most that may be held now; peak_bytes: the most that was.
  int64_t budget_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t fixed_bytes = 0;  // constants, tables, workspace
  int64_t pool_bytes = 0;   // expert blocks held now

  // Experts.
  int64_t lookups = 0;
  int64_t hits_resident = 0;
  int64_t hits_prefetched = 0;
  int64_t late = 0;
  int64_t loads = 0;         // completed, without prefetches
  int64_t low_loads = 0;     // loads and prefetches that brought a lower version than the best
  int64_t bytes_loaded = 0;  // demand and prefetch and promotion
  int64_t evictions = 0;
  int64_t low_answers = 0;   // lookups answered by a lower version than intended
  int64_t cpu_computed = 0;  // lookups computed by the CPU beside a GPU
  // CPU jobs that captured calls took back at a deadline; their lookups count as loads.
  int64_t cpu_taken_back = 0;
  // The next three: where a device serves misses and pinned memory does not hold every record.
  int64_t cpu_below = 0;       // lookups of cpu_computed whose records were elsewhere
  int64_t cpu_read_bytes = 0;  // for these
  int64_t pinned_swaps = 0;    // records that replaced others in pinned memory
  int64_t pinned_bytes = 0;    // pinned RAM that holds records now, outside of the budget
  int64_t upgrades = 0;        // low copies that the best version began to replace in place
  int64_t fills = 0;           // loads after a call, of experts that the call did without

  // Prefetch.
  int64_t prefetch_issued = 0;     // began to move
  int64_t prefetch_cancelled = 0;  // were queued, but the true routing came first
  int64_t prefetch_useful = 0;     // used before eviction, in time or late
  int64_t prefetch_active = 0;     // issued ones whose expert the target layer's true routing used
  int64_t prefetch_top_score = 0;  // ... or had as top-score (under the expert-cache rule)
  int64_t prefetch_bytes = 0;
  int64_t prefetch_predicted = 0;           // experts used by layers that had a prediction
  int64_t prefetch_recalled = 0;            // of these, experts that the prediction named
  int64_t prefetch_recalled_in_window = 0;  // of the latter, experts present, in flight or admitted
  // Layer calls with predicted experts, by the gate's input:
  int64_t predictions_resident_forward = 0;  // as the host predicts it (StepInfo::predict_next)
  int64_t predictions_next_gate = 0;         // that of the layer before
  bool prefetch_disabled = false;            // prefetching is off in decode steps: it did not pay
  int64_t prefetch_disabled_steps = 0;       // decode steps that ran with it off
  int64_t prefetch_trials = 0;               // blocks of steps tried in the other mode
  int64_t prefetch_switches = 0;             // of these, those after which the mode changed

  // Routing (slots are token x k).
  int64_t slots = 0;
  int64_t slots_substituted = 0;
  double mass = 0;              // sum of the model's own routing weights
  double mass_substituted = 0;  // of the experts that were displaced
  int64_t slots_low = 0;        // answered by a lower version than intended
  double mass_low = 0;          // routing weight of these, as it entered the sum
  // The largest substituted shares that any one request reached; caps are checked against them.
  double worst_slot_share = 0;
  double worst_mass_share = 0;
  // Likewise the share of routing mass answered low under a bound (PlacementRule::max_low_share).
  double worst_low_share = 0;
  // Lookups and hits as they would be counted before substitution.
  int64_t model_lookups = 0;
  int64_t model_hits = 0;

  // Precision.
  int64_t promotions = 0;  // to a higher version
  int64_t demotions = 0;   // to a lower one
  int64_t deferred = 0;    // promotions put off for lack of room or rate

  // CPU-load balance: modelled time of the two sides, summed over layers.
  int64_t balance_load_ns = 0;
  int64_t balance_cpu_ns = 0;

  int64_t policy_fallbacks = 0;  // policy answers replaced by the default

  // Stalls: time a layer could not go on, by reason, in the engine's clock.
  int64_t stall_miss_ns = 0;   // waiting for a demand load's own transfer
  int64_t stall_queue_ns = 0;  // waiting behind other transfers
  int64_t stall_cpu_ns = 0;    // waiting for experts computed by the CPU

  int64_t host_syncs = 0;       // times a layer call waited for the device
  bool graph_captured = false;  // whether layer calls were recorded into a CUDA graph

  double hit_ratio() const {
    return lookups == 0 ? 1.0
                        : static_cast<double>(hits_resident + hits_prefetched) /
                              static_cast<double>(lookups);
  }
};

/// Prometheus' text format, names moert_*. `label` becomes engine="..." (empty: no label).
std::string PrometheusText(const EngineStats& stats, absl::string_view label);

/// Counts between two snapshots of an engine: counters subtracted, sizes and flags as now.
EngineStats StatsSince(const EngineStats& now, const EngineStats& before);

/// Time that layers could not go on, for any reason.
inline int64_t StalledNs(const EngineStats& stats) {
  return stats.stall_miss_ns + stats.stall_queue_ns + stats.stall_cpu_ns;
}

}  // namespace moert

#endif  // MOERT_STATS_H_
