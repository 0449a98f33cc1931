// The table of metrics, and the statistics as Prometheus text (exposition format 0.0.4).
#include "moert/tools/metrics.h"

#include <iterator>
#include <string>

#include "base/fmt_absl.h"
#include "fmt/format.h"

namespace moert {
namespace {

/// Backslash, quote and newline are escaped in label values.
std::string Escape(absl::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

constexpr double kSeconds = 1e-9;
constexpr const char* kGauge = "gauge";
constexpr const char* kCounter = "counter";

using Visitor = absl::FunctionRef<void(const Metric&)>;

double Number(int64_t count) { return static_cast<double>(count); }

/// Contents of the fast tier, lookups and transfers.
void CacheMetrics(const EngineStats& s, Visitor visit) {
  const Metric metrics[] = {
      {"moert_budget_bytes", kGauge, "Hard limit of the fast tier.", Number(s.budget_bytes)},
      {"moert_peak_bytes", kGauge, "Most bytes ever held.", Number(s.peak_bytes)},
      {"moert_fixed_bytes", kGauge, "Constants, tables and workspace.", Number(s.fixed_bytes)},
      {"moert_pool_bytes", kGauge, "Expert blocks held now.", Number(s.pool_bytes)},
      {"moert_lookups_total", kCounter, "Distinct experts that layer calls needed.",
       Number(s.lookups)},
      {"moert_hits_resident_total", kCounter, "Lookups whose expert was there.",
       Number(s.hits_resident)},
      {"moert_hits_prefetched_total", kCounter, "Lookups that a prefetch served first.",
       Number(s.hits_prefetched)},
      {"moert_late_total", kCounter, "Lookups whose expert was on its way.", Number(s.late)},
      {"moert_low_answers_total", kCounter, "Lookups answered in a lower version than intended.",
       Number(s.low_answers)},
      {"moert_cpu_computed_total", kCounter, "Lookups computed by the CPU beside a GPU.",
       Number(s.cpu_computed)},
      {"moert_cpu_taken_back_total", kCounter,
       "Jobs of the CPU that captured calls took back, behind a deadline.",
       Number(s.cpu_taken_back)},
      {"moert_model_lookups_total", kCounter, "Lookups as they were before substitution.",
       Number(s.model_lookups)},
      {"moert_model_hits_total", kCounter, "Hits as they were before substitution.",
       Number(s.model_hits)},
      {"moert_loads_total", kCounter, "Demand loads completed.", Number(s.loads)},
      {"moert_low_loads_total", kCounter, "Transfers that brought a lower version than the best.",
       Number(s.low_loads)},
      {"moert_loaded_bytes_total", kCounter, "Bytes of all transfers.", Number(s.bytes_loaded)},
      {"moert_evictions_total", kCounter, "Experts evicted.", Number(s.evictions)},
      {"moert_upgrades_total", kCounter, "Low copies replaced by the best version in place.",
       Number(s.upgrades)},
      {"moert_fills_total", kCounter, "Loads behind a call of what it did without.",
       Number(s.fills)},
      {"moert_promotions_total", kCounter, "Experts brought to the high version.",
       Number(s.promotions)},
      {"moert_demotions_total", kCounter, "Experts taken to the low version.", Number(s.demotions)},
      {"moert_deferred_total", kCounter, "Promotions put off for lack of room or rate.",
       Number(s.deferred)},
  };
  for (const Metric& metric : metrics) visit(metric);
}

/// Prefetches, and how well predictions were met.
void PrefetchMetrics(const EngineStats& s, Visitor visit) {
  const Metric metrics[] = {
      {"moert_prefetch_issued_total", kCounter, "Prefetches started.", Number(s.prefetch_issued)},
      {"moert_prefetch_bytes_total", kCounter, "Bytes of prefetches.", Number(s.prefetch_bytes)},
      {"moert_prefetch_cancelled_total", kCounter,
       "Prefetches forgotten before they began to move.", Number(s.prefetch_cancelled)},
      {"moert_prefetch_useful_total", kCounter, "Prefetches used before eviction.",
       Number(s.prefetch_useful)},
      {"moert_prefetch_active_total", kCounter, "Prefetches that the routing they were for used.",
       Number(s.prefetch_active)},
      {"moert_prefetch_top_score_total", kCounter, "Prefetches that were top-score in it.",
       Number(s.prefetch_top_score)},
      {"moert_prefetch_predicted_total", kCounter,
       "Experts of layers that a prediction was made for.", Number(s.prefetch_predicted)},
      {"moert_prefetch_recalled_total", kCounter, "Those of them that were in it.",
       Number(s.prefetch_recalled)},
      {"moert_prefetch_recalled_in_window_total", kCounter,
       "Those that were also present, on their way or admitted.",
       Number(s.prefetch_recalled_in_window)},
      {"moert_predictions_next_gate_total", kCounter,
       "Layer calls predicted by the next layer's gate.", Number(s.predictions_next_gate)},
      {"moert_predictions_resident_forward_total", kCounter,
       "Layer calls predicted from the partial output.", Number(s.predictions_resident_forward)},
      {"moert_prefetch_disabled", kGauge, "1 while prefetching is off because it did not pay.",
       Number(s.prefetch_disabled)},
      {"moert_prefetch_disabled_steps_total", kCounter,
       "Decode steps with prefetching off because it did not pay.",
       Number(s.prefetch_disabled_steps)},
      {"moert_prefetch_trials_total", kCounter, "Blocks of steps tried with prefetch on or off.",
       Number(s.prefetch_trials)},
      {"moert_prefetch_switches_total", kCounter, "Trials after which prefetch changed.",
       Number(s.prefetch_switches)},
  };
  for (const Metric& metric : metrics) visit(metric);
}

/// How far the routing is the model's own.
void RoutingMetrics(const EngineStats& s, Visitor visit) {
  const Metric metrics[] = {
      {"moert_routing_slots_total", kCounter, "Token x k slots routed.", Number(s.slots)},
      {"moert_routing_slots_substituted_total", kCounter, "Slots whose expert was replaced.",
       Number(s.slots_substituted)},
      {"moert_routing_slots_low_total", kCounter,
       "Slots answered in a lower version than intended.", Number(s.slots_low)},
      {"moert_routing_mass_total", kCounter, "Sum of the model's own routing weights.", s.mass},
      {"moert_routing_mass_substituted_total", kCounter,
       "Weights of the experts that were replaced.", s.mass_substituted},
      {"moert_routing_mass_low_total", kCounter,
       "Weights of slots answered in a lower version than intended.", s.mass_low},
      {"moert_routing_worst_slot_share", kGauge,
       "Largest substituted share of slots of any one request.", s.worst_slot_share},
      {"moert_routing_worst_mass_share", kGauge,
       "Largest substituted share of weights of any one request.", s.worst_mass_share},
  };
  for (const Metric& metric : metrics) visit(metric);
}

/// Waits of layer calls, and how the calls ran.
void CallMetrics(const EngineStats& s, Visitor visit) {
  const Metric metrics[] = {
      {"moert_stall_miss_seconds_total", kCounter, "Waiting for a demand load's own transfer.",
       Number(s.stall_miss_ns) * kSeconds},
      {"moert_stall_queue_seconds_total", kCounter, "Waiting behind other transfers.",
       Number(s.stall_queue_ns) * kSeconds},
      {"moert_stall_cpu_seconds_total", kCounter, "Waiting for experts computed by the CPU.",
       Number(s.stall_cpu_ns) * kSeconds},
      {"moert_balance_load_seconds_total", kCounter, "Modelled time of misses given to the link.",
       Number(s.balance_load_ns) * kSeconds},
      {"moert_balance_cpu_seconds_total", kCounter, "Modelled time of misses given to the CPU.",
       Number(s.balance_cpu_ns) * kSeconds},
      {"moert_policy_fallbacks_total", kCounter, "Policy answers replaced by the default.",
       Number(s.policy_fallbacks)},
      {"moert_host_syncs_total", kCounter, "Times a layer call waited for the device.",
       Number(s.host_syncs)},
      {"moert_graph_captured", kGauge, "1 when layer calls were recorded into a CUDA graph.",
       Number(s.graph_captured)},
  };
  for (const Metric& metric : metrics) visit(metric);
}

}  // namespace

void VisitMetrics(const EngineStats& stats, absl::FunctionRef<void(const Metric&)> visit) {
  CacheMetrics(stats, visit);
  PrefetchMetrics(stats, visit);
  RoutingMetrics(stats, visit);
  CallMetrics(stats, visit);
}

std::string PrometheusText(const EngineStats& stats, absl::string_view label) {
  const std::string labels = label.empty() ? "" : fmt::format("{{engine=\"{}\"}}", Escape(label));
  std::string text;
  VisitMetrics(stats, [&](const Metric& m) {
    fmt::format_to(std::back_inserter(text), "# HELP {0} {1}\n# TYPE {0} {2}\n{0}{3} {4}\n", m.name,
                   m.help, m.type, labels, m.value);
  });
  return text;
}

}  // namespace moert
