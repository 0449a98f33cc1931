// Statistics as Prometheus text (exposition format 0.0.4).
#include <iterator>

#include "base/fmt_absl.h"
#include "fmt/format.h"
#include "moert/stats.h"

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

struct Metric {
  const char* name;  // without moert_
  const char* type;
  const char* help;
  double value;
};

constexpr double kSeconds = 1e-9;

}  // namespace

std::string PrometheusText(const EngineStats& s, absl::string_view label) {
  const auto n = [](int64_t count) { return static_cast<double>(count); };
  const Metric metrics[] = {
      {"budget_bytes", "gauge", "Hard limit of the fast tier.", n(s.budget_bytes)},
      {"peak_bytes", "gauge", "Most bytes ever held.", n(s.peak_bytes)},
      {"fixed_bytes", "gauge", "Constants, tables and workspace.", n(s.fixed_bytes)},
      {"pool_bytes", "gauge", "Expert blocks held now.", n(s.pool_bytes)},
      {"lookups_total", "counter", "Distinct experts that layer calls needed.", n(s.lookups)},
      {"hits_resident_total", "counter", "Lookups whose expert was there.", n(s.hits_resident)},
      {"hits_prefetched_total", "counter", "Lookups that a prefetch served first.",
       n(s.hits_prefetched)},
      {"late_total", "counter", "Lookups whose expert was on its way.", n(s.late)},
      {"loads_total", "counter", "Demand loads completed.", n(s.loads)},
      {"loaded_bytes_total", "counter", "Bytes of all transfers.", n(s.bytes_loaded)},
      {"evictions_total", "counter", "Experts evicted.", n(s.evictions)},
      {"low_answers_total", "counter", "Lookups answered in a lower version than intended.",
       n(s.low_answers)},
      {"cpu_computed_total", "counter", "Lookups computed by the CPU beside a GPU.",
       n(s.cpu_computed)},
      {"upgrades_total", "counter", "Low copies replaced by the best version in place.",
       n(s.upgrades)},
      {"fills_total", "counter", "Loads of what the CPU had computed.", n(s.fills)},
      {"prefetch_issued_total", "counter", "Prefetches started.", n(s.prefetch_issued)},
      {"prefetch_useful_total", "counter", "Prefetches used before eviction.",
       n(s.prefetch_useful)},
      {"prefetch_active_total", "counter", "Prefetches that the routing they were for used.",
       n(s.prefetch_active)},
      {"prefetch_top_score_total", "counter", "Prefetches that were top-score in it.",
       n(s.prefetch_top_score)},
      {"prefetch_cancelled_total", "counter", "Prefetches forgotten before they began to move.",
       n(s.prefetch_cancelled)},
      {"predictions_resident_forward_total", "counter",
       "Layer calls predicted from the partial output.", n(s.predictions_resident_forward)},
      {"predictions_next_gate_total", "counter", "Layer calls predicted by the next layer's gate.",
       n(s.predictions_next_gate)},
      {"prefetch_trials_total", "counter", "Blocks of steps tried with prefetch on or off.",
       n(s.prefetch_trials)},
      {"prefetch_switches_total", "counter", "Trials after which prefetch changed.",
       n(s.prefetch_switches)},
      {"low_loads_total", "counter", "Transfers that brought a lower version than the best.",
       n(s.low_loads)},
      {"balance_load_seconds_total", "counter", "Modelled time of misses given to the link.",
       n(s.balance_load_ns) * kSeconds},
      {"balance_cpu_seconds_total", "counter", "Modelled time of misses given to the CPU.",
       n(s.balance_cpu_ns) * kSeconds},
      {"prefetch_bytes_total", "counter", "Bytes of prefetches.", n(s.prefetch_bytes)},
      {"prefetch_disabled", "gauge", "1 while prefetching is off because it did not pay.",
       n(s.prefetch_disabled)},
      {"routing_slots_total", "counter", "Token x k slots routed.", n(s.slots)},
      {"routing_slots_substituted_total", "counter", "Slots whose expert was replaced.",
       n(s.slots_substituted)},
      {"routing_slots_low_total", "counter", "Slots answered in a lower version than intended.",
       n(s.slots_low)},
      {"promotions_total", "counter", "Experts brought to the high version.", n(s.promotions)},
      {"demotions_total", "counter", "Experts taken to the low version.", n(s.demotions)},
      {"policy_fallbacks_total", "counter", "Policy answers replaced by the default.",
       n(s.policy_fallbacks)},
      {"stall_miss_seconds_total", "counter", "Waiting for a demand load's own transfer.",
       n(s.stall_miss_ns) * kSeconds},
      {"stall_queue_seconds_total", "counter", "Waiting behind other transfers.",
       n(s.stall_queue_ns) * kSeconds},
      {"stall_staging_seconds_total", "counter", "Waiting for space to load into.",
       n(s.stall_staging_ns) * kSeconds},
      {"stall_cpu_seconds_total", "counter", "Waiting for experts computed by the CPU.",
       n(s.stall_cpu_ns) * kSeconds},
      {"host_syncs_total", "counter", "Times a layer call waited for the device.", n(s.host_syncs)},
  };
  const std::string labels = label.empty() ? "" : fmt::format("{{engine=\"{}\"}}", Escape(label));
  std::string text;
  for (const Metric& m : metrics) {
    fmt::format_to(std::back_inserter(text), "# HELP moert_{0} {1}\n# TYPE moert_{0} {2}\n", m.name,
                   m.help, m.type);
    fmt::format_to(std::back_inserter(text), "moert_{}{} {}\n", m.name, labels, m.value);
  }
  return text;
}

}  // namespace moert
