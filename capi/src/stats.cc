#include <cstring>
#include <string>

#include "guard.h"
#include "handles.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

moert_stats ToC(const EngineStats& s) {
  moert_stats c{};
  c.budget_bytes = s.budget_bytes;
  c.peak_bytes = s.peak_bytes;
  c.fixed_bytes = s.fixed_bytes;
  c.pool_bytes = s.pool_bytes;
  c.lookups = s.lookups;
  c.hits_resident = s.hits_resident;
  c.hits_prefetched = s.hits_prefetched;
  c.late = s.late;
  c.loads = s.loads;
  c.bytes_loaded = s.bytes_loaded;
  c.evictions = s.evictions;
  c.low_answers = s.low_answers;
  c.cpu_computed = s.cpu_computed;
  c.prefetch_issued = s.prefetch_issued;
  c.prefetch_useful = s.prefetch_useful;
  c.prefetch_bytes = s.prefetch_bytes;
  c.prefetch_predicted = s.prefetch_predicted;
  c.prefetch_recalled = s.prefetch_recalled;
  c.slots = s.slots;
  c.slots_substituted = s.slots_substituted;
  c.mass = s.mass;
  c.mass_substituted = s.mass_substituted;
  c.worst_slot_share = s.worst_slot_share;
  c.worst_mass_share = s.worst_mass_share;
  c.model_lookups = s.model_lookups;
  c.model_hits = s.model_hits;
  c.promotions = s.promotions;
  c.demotions = s.demotions;
  c.deferred = s.deferred;
  c.balance_load_ns = s.balance_load_ns;
  c.balance_cpu_ns = s.balance_cpu_ns;
  c.policy_fallbacks = s.policy_fallbacks;
  c.stall_miss_ns = s.stall_miss_ns;
  c.stall_queue_ns = s.stall_queue_ns;
  c.stall_staging_ns = s.stall_staging_ns;
  c.stall_cpu_ns = s.stall_cpu_ns;
  c.host_syncs = s.host_syncs;
  c.prefetch_disabled = s.prefetch_disabled;
  c.graph_captured = s.graph_captured;
  c.prefetch_active = s.prefetch_active;
  c.prefetch_top_score = s.prefetch_top_score;
  c.predictions_resident_forward = s.predictions_resident_forward;
  c.predictions_next_gate = s.predictions_next_gate;
  c.prefetch_cancelled = s.prefetch_cancelled;
  c.prefetch_recalled_in_window = s.prefetch_recalled_in_window;
  c.prefetch_disabled_steps = s.prefetch_disabled_steps;
  c.slots_low = s.slots_low;
  c.mass_low = s.mass_low;
  c.low_loads = s.low_loads;
  c.upgrades = s.upgrades;
  c.fills = s.fills;
  c.prefetch_trials = s.prefetch_trials;
  c.prefetch_switches = s.prefetch_switches;
  return c;
}

/// The engine's, and the decisions that a host failed to make.
EngineStats StatsOf(const moert_engine& engine) {
  EngineStats stats = engine.state->engine->stats();
  if (engine.state->policies != nullptr) {
    stats.policy_fallbacks += engine.state->policies->failures.load();
  }
  return stats;
}

absl::Status CopyText(const std::string& text, char* buffer, uint64_t buffer_bytes,
                      uint64_t* needed) {
  if (needed != nullptr) *needed = text.size() + 1;
  if (buffer == nullptr && buffer_bytes == 0) return absl::OkStatus();
  MOERT_REQUIRE_NOT_NULL(buffer);
  if (buffer_bytes < text.size() + 1) {
    return absl::OutOfRangeError(
        absl::StrCat("buffer_bytes is ", buffer_bytes, ", the text takes ", text.size() + 1));
  }
  std::memcpy(buffer, text.c_str(), text.size() + 1);
  return absl::OkStatus();
}

}  // namespace
}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

void moert_stats_init(moert_stats* stats, uint64_t size) { InitStruct(stats, size, moert_stats{}); }

moert_code moert_engine_stats(const moert_engine* engine, moert_stats* stats, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(engine);
    return WriteStruct(ToC(StatsOf(*engine)), stats, "stats");
  });
}

moert_code moert_engine_prometheus(const moert_engine* engine, const char* label, char* buffer,
                                   uint64_t buffer_bytes, uint64_t* needed, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(engine);
    const std::string text = moert::PrometheusText(StatsOf(*engine), label == nullptr ? "" : label);
    return CopyText(text, buffer, buffer_bytes, needed);
  });
}

}  // extern "C"
