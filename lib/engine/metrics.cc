// The table of metrics, the statistics as Prometheus text (exposition format 0.0.4), and the
// difference of two snapshots.
#include "moert/tools/metrics.h"

#include <iterator>
#include <string>
#include <variant>

#include "absl/strings/match.h"
#include "base/fmt_absl.h"
#include "fmt/format.h"

namespace moert {
namespace {

using S = EngineStats;
using Field = std::variant<int64_t S::*, double S::*, bool S::*>;

struct Row {
  const char* name;
  const char* help;
  Field field;

  bool counter() const { return absl::EndsWith(name, "_total"); }
};

constexpr Row kRows[] = {
    // Contents of the fast tier, lookups and transfers.
    {"moert_budget_bytes", "Hard limit of the fast tier.", &S::budget_bytes},
    {"moert_peak_bytes", "Most bytes ever held.", &S::peak_bytes},
    {"moert_fixed_bytes", "Constants, tables and workspace.", &S::fixed_bytes},
    {"moert_pool_bytes", "Expert blocks held now.", &S::pool_bytes},
    {"moert_lookups_total", "Distinct experts that layer calls needed.", &S::lookups},
    {"moert_hits_resident_total", "Lookups whose expert was there.", &S::hits_resident},
    {"moert_hits_prefetched_total", "Lookups that a prefetch served first.", &S::hits_prefetched},
    {"moert_late_total", "Lookups whose expert was on its way.", &S::late},
    {"moert_low_answers_total", "Lookups answered in a lower version than intended.",
     &S::low_answers},
    {"moert_cpu_computed_total", "Lookups computed by the CPU beside a GPU.", &S::cpu_computed},
    {"moert_cpu_taken_back_total",
     "Jobs of the CPU that captured calls took back, behind a deadline.", &S::cpu_taken_back},
    {"moert_cpu_below_total", "Lookups computed by the CPU from records beside pinned memory.",
     &S::cpu_below},
    {"moert_cpu_read_bytes_total", "Bytes of records that were read for the CPU.",
     &S::cpu_read_bytes},
    {"moert_pinned_swaps_total", "Records that came into pinned memory in place of others.",
     &S::pinned_swaps},
    {"moert_pinned_bytes", "Pinned memory for records, beside the budget.", &S::pinned_bytes},
    {"moert_model_lookups_total", "Lookups as they were before substitution.", &S::model_lookups},
    {"moert_model_hits_total", "Hits as they were before substitution.", &S::model_hits},
    {"moert_loads_total", "Demand loads completed.", &S::loads},
    {"moert_low_loads_total", "Transfers that brought a lower version than the best.",
     &S::low_loads},
    {"moert_loaded_bytes_total", "Bytes of all transfers.", &S::bytes_loaded},
    {"moert_evictions_total", "Experts evicted.", &S::evictions},
    {"moert_upgrades_total", "Low copies replaced by the best version in place.", &S::upgrades},
    {"moert_fills_total", "Loads behind a call of what it did without.", &S::fills},
    {"moert_promotions_total", "Experts brought to the high version.", &S::promotions},
    {"moert_demotions_total", "Experts taken to the low version.", &S::demotions},
    {"moert_deferred_total", "Promotions put off for lack of room or rate.", &S::deferred},
    // Prefetches, and how well predictions were met.
    {"moert_prefetch_issued_total", "Prefetches started.", &S::prefetch_issued},
    {"moert_prefetch_bytes_total", "Bytes of prefetches.", &S::prefetch_bytes},
    {"moert_prefetch_cancelled_total", "Prefetches forgotten before they began to move.",
     &S::prefetch_cancelled},
    {"moert_prefetch_useful_total", "Prefetches used before eviction.", &S::prefetch_useful},
    {"moert_prefetch_active_total", "Prefetches that the routing they were for used.",
     &S::prefetch_active},
    {"moert_prefetch_top_score_total", "Prefetches that were top-score in it.",
     &S::prefetch_top_score},
    {"moert_prefetch_predicted_total", "Experts of layers that a prediction was made for.",
     &S::prefetch_predicted},
    {"moert_prefetch_recalled_total", "Those of them that were in it.", &S::prefetch_recalled},
    {"moert_prefetch_recalled_in_window_total",
     "Those that were also present, on their way or admitted.", &S::prefetch_recalled_in_window},
    {"moert_predictions_next_gate_total", "Layer calls predicted by the next layer's gate.",
     &S::predictions_next_gate},
    {"moert_predictions_resident_forward_total", "Layer calls predicted from the partial output.",
     &S::predictions_resident_forward},
    {"moert_prefetch_disabled", "1 while prefetching is off because it did not pay.",
     &S::prefetch_disabled},
    {"moert_prefetch_disabled_steps_total",
     "Decode steps with prefetching off because it did not pay.", &S::prefetch_disabled_steps},
    {"moert_prefetch_trials_total", "Blocks of steps tried with prefetch on or off.",
     &S::prefetch_trials},
    {"moert_prefetch_switches_total", "Trials after which prefetch changed.",
     &S::prefetch_switches},
    // How far the routing is the model's own.
    {"moert_routing_slots_total", "Token x k slots routed.", &S::slots},
    {"moert_routing_slots_substituted_total", "Slots whose expert was replaced.",
     &S::slots_substituted},
    {"moert_routing_slots_low_total", "Slots answered in a lower version than intended.",
     &S::slots_low},
    {"moert_routing_mass_total", "Sum of the model's own routing weights.", &S::mass},
    {"moert_routing_mass_substituted_total", "Weights of the experts that were replaced.",
     &S::mass_substituted},
    {"moert_routing_mass_low_total", "Weights of slots answered in a lower version than intended.",
     &S::mass_low},
    {"moert_routing_worst_slot_share", "Largest substituted share of slots of any one request.",
     &S::worst_slot_share},
    {"moert_routing_worst_mass_share", "Largest substituted share of weights of any one request.",
     &S::worst_mass_share},
    // Waits of layer calls, and how the calls ran.
    {"moert_stall_miss_seconds_total", "Waiting for a demand load's own transfer.",
     &S::stall_miss_ns},
    {"moert_stall_queue_seconds_total", "Waiting behind other transfers.", &S::stall_queue_ns},
    {"moert_stall_cpu_seconds_total", "Waiting for experts computed by the CPU.", &S::stall_cpu_ns},
    {"moert_balance_load_seconds_total", "Modelled time of misses given to the link.",
     &S::balance_load_ns},
    {"moert_balance_cpu_seconds_total", "Modelled time of misses given to the CPU.",
     &S::balance_cpu_ns},
    {"moert_policy_fallbacks_total", "Policy answers replaced by the default.",
     &S::policy_fallbacks},
    {"moert_host_syncs_total", "Times a layer call waited for the device.", &S::host_syncs},
    {"moert_graph_captured", "1 when layer calls were recorded into a CUDA graph.",
     &S::graph_captured},
};

double Value(const EngineStats& stats, const Row& row) {
  const double value =
      std::visit([&](auto field) { return static_cast<double>(stats.*field); }, row.field);
  return absl::StrContains(row.name, "_seconds") ? value * 1e-9 : value;
}

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

}  // namespace

void VisitMetrics(const EngineStats& stats, absl::FunctionRef<void(const Metric&)> visit) {
  for (const Row& row : kRows) {
    visit({row.name, row.counter() ? "counter" : "gauge", row.help, Value(stats, row)});
  }
}

EngineStats StatsSince(const EngineStats& now, const EngineStats& before) {
  EngineStats since = now;
  for (const Row& row : kRows) {
    if (!row.counter()) continue;
    std::visit([&](auto field) { since.*field -= before.*field; }, row.field);
  }
  return since;
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
