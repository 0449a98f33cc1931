#include "cli/bench/model_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cli/common/output.h"
#include "cli/common/report.h"
#include "util/bytes_text.h"

namespace moert::cli {
namespace {

using nlohmann::json;

double Mean(const std::vector<double>& values) {
  return values.empty() ? 0
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

double Percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto i = static_cast<size_t>(std::ceil(p * static_cast<double>(values.size())));
  return values[std::min(values.size() - 1, i == 0 ? 0 : i - 1)];
}

struct Timing {
  Spread step_ms;                     // over repetitions, of the mean step
  std::vector<double> repetition_ms;  // the mean step of each
  double mean = 0, p50 = 0, p99 = 0;  // of all steps
  int64_t steps = 0;
};

Timing TimingOf(const Variant& v) {
  Timing t;
  std::vector<double> means, all;
  for (const std::vector<StepCost>& repetition : v.steps) {
    const size_t first = all.size();
    for (const StepCost& step : repetition) all.push_back(step.ms);
    means.push_back(Mean({all.begin() + static_cast<int64_t>(first), all.end()}));
  }
  t.step_ms = SpreadOf(means);
  t.repetition_ms = means;
  t.steps = static_cast<int64_t>(all.size());
  t.mean = Mean(all);
  t.p50 = Percentile(all, 0.5);
  t.p99 = Percentile(all, 0.99);
  return t;
}

/// The host's part in a layer call of steps on a device.
json HostJson(const Variant& v) {
  const double layers = v.engine->model().num_layers();
  double begin_ms = 0, host_ms = 0, waited_ms = 0, waits = 0, launches = 0, steps = 0, replayed = 0;
  bool counted = true;
  std::vector<double> layer_us;
  for (const std::vector<StepCost>& repetition : v.steps) {
    for (const StepCost& step : repetition) {
      ++steps;
      begin_ms += step.begin_ms;
      host_ms += step.host_ms;
      counted = counted && step.waits >= 0;
      waited_ms += step.waited_ms;
      waits += static_cast<double>(step.waits);
      launches += static_cast<double>(step.launches);
      replayed += step.replayed;
      layer_us.insert(layer_us.end(), step.layer_us.begin(), step.layer_us.end());
    }
  }
  if (steps == 0) return nullptr;
  json host = {{"begin_us", 1e3 * begin_ms / steps},
               {"cpu_us_a_layer", 1e3 * host_ms / steps / layers},
               {"replayed", replayed / steps}};
  if (counted) {
    host["busy_us_a_layer"] = 1e3 * (host_ms - waited_ms) / steps / layers;
    host["driver_waits_a_step"] = waits / steps;
    host["launches_a_layer"] = launches / steps / layers;
  }
  if (!layer_us.empty()) {
    host["layer_us"] = {{"mean", Mean(layer_us)},
                        {"p50", Percentile(layer_us, 0.5)},
                        {"p99", Percentile(layer_us, 0.99)},
                        {"max", *std::max_element(layer_us.begin(), layer_us.end())}};
  }
  return host;
}

struct Row {
  Timing timing;
  EngineStats stats;
  MemoryPlan plan;
  Oracles oracles;
  PrefetchBound bound;
  double stall_ms = 0;      // per step
  double tokens_per_s = 0;  // of all requests together
};

/// The time of a layer without waiting, taken from the variant that waited least.
double LayerMs(const VariantGroup& group) {
  double least = 0, best_stall = 0;
  for (const Variant& v : group.variants) {
    if (v.engine == nullptr) continue;
    const Timing t = TimingOf(v);
    const EngineStats s = StatsSince(v.engine->stats(), v.before);
    const double stall = 1e-6 * static_cast<double>(StalledNs(s)) /
                         static_cast<double>(std::max<int64_t>(1, t.steps));
    if (least != 0 && stall >= best_stall) continue;
    best_stall = stall;
    least = (t.step_ms.median - stall) / v.engine->model().num_layers();
  }
  return std::max(0.0, least);
}

Row RowOf(const VariantGroup& group, const Variant& v, double layer_ms) {
  Row row;
  row.timing = TimingOf(v);
  row.stats = StatsSince(v.engine->stats(), v.before);
  row.plan = v.engine->memory();
  row.stall_ms = 1e-6 * static_cast<double>(StalledNs(row.stats)) /
                 static_cast<double>(std::max<int64_t>(1, row.timing.steps));
  if (row.timing.step_ms.median > 0) {
    row.tokens_per_s = 1e3 * static_cast<double>(group.batch) / row.timing.step_ms.median;
  }
  row.oracles = ComputeOracles(*group.history, row.plan.slots);
  row.bound = PerfectPrefetch(*group.history, row.plan.slots, layer_ms, group.transfer_ms);
  return row;
}

json RowJson(const VariantGroup& group, const Variant& v, const Row& row) {
  const EngineStats& s = row.stats;
  const auto ratio = [](auto part, auto whole) {
    return whole == 0 ? json(nullptr)
                      : json(static_cast<double>(part) / static_cast<double>(whole));
  };
  const auto steps = static_cast<double>(std::max<int64_t>(1, row.timing.steps));
  json oracles = ToJson(row.oracles);
  oracles["perfect_prefetch_lru_ms"] = row.bound.lru_ms;
  oracles["perfect_prefetch_belady_ms"] = row.bound.belady_ms;
  return {{"strategy", v.strategy},
          {"budget", v.budget.empty() ? group.budget : v.budget},
          {"budget_bytes", s.budget_bytes},
          {"peak_bytes", s.peak_bytes},
          {"slots", row.plan.slots},
          {"total_experts", row.plan.total_experts},
          {"exact", v.engine->exact()},
          {"promise", std::string(PromiseName(v.engine->promise()))},
          {"step_ms", ToJson(row.timing.step_ms)},
          {"tokens_per_s", row.tokens_per_s},
          {"repetition_ms", row.timing.repetition_ms},
          {"step_mean_ms", row.timing.mean},
          {"step_p50_ms", row.timing.p50},
          {"step_p99_ms", row.timing.p99},
          {"steps", row.timing.steps},
          {"stall_ms", row.stall_ms},
          {"hit_ratio", s.hit_ratio()},
          {"lookups", s.lookups},
          {"hits_resident", s.hits_resident},
          {"hits_prefetched", s.hits_prefetched},
          {"late", s.late},
          {"loads", s.loads},
          {"bytes_loaded_a_step", static_cast<double>(s.bytes_loaded) / steps},
          {"low_answers", ratio(s.low_answers, s.lookups)},
          {"prefetch_accuracy", ratio(s.prefetch_useful, s.prefetch_issued)},
          {"prefetch_recall", ratio(s.prefetch_recalled, s.prefetch_predicted)},
          {"prefetch_issued", s.prefetch_issued},
          {"prefetch_active", ratio(s.prefetch_active, s.prefetch_issued)},
          {"prefetch_top_score", ratio(s.prefetch_top_score, s.prefetch_issued)},
          {"prefetch_disabled_steps", s.prefetch_disabled_steps},
          {"low_slots", ratio(s.slots_low, s.slots)},
          {"substituted", ratio(s.slots_substituted, s.slots)},
          {"model_hit_ratio", ratio(s.model_hits, s.model_lookups)},
          {"cpu_computed", ratio(s.cpu_computed, s.lookups)},
          {"cpu_below", ratio(s.cpu_below, s.lookups)},
          {"cpu_read_bytes_a_step", static_cast<double>(s.cpu_read_bytes) / steps},
          {"pinned_bytes", s.pinned_bytes},
          {"pinned_swaps", s.pinned_swaps},
          {"fills", s.fills},
          {"balance_ms",
           {{"load", 1e-6 * static_cast<double>(s.balance_load_ns) / steps},
            {"cpu", 1e-6 * static_cast<double>(s.balance_cpu_ns) / steps}}},
          {"promotions", s.promotions},
          {"demotions", s.demotions},
          {"deferred", s.deferred},
          {"host_syncs", s.host_syncs},
          {"stall_reasons_ms",
           {{"miss", 1e-6 * static_cast<double>(s.stall_miss_ns) / steps},
            {"queue", 1e-6 * static_cast<double>(s.stall_queue_ns) / steps},
            {"cpu", 1e-6 * static_cast<double>(s.stall_cpu_ns) / steps}}},
          {"host", v.engine->backend() == BackendKind::kCuda ? HostJson(v) : json(nullptr)},
          {"policy_fallbacks", s.policy_fallbacks},
          {"oracles", oracles}};
}

}  // namespace

json ToJson(const VariantGroup& group) {
  const double layer_ms = LayerMs(group);
  json variants = json::array();
  for (const Variant& v : group.variants) {
    if (v.engine == nullptr) {
      variants.push_back({{"strategy", v.strategy}, {"refused", v.refused}});
    } else {
      variants.push_back(RowJson(group, v, RowOf(group, v, layer_ms)));
    }
  }
  return {{"budget", group.budget},
          {"batch", group.batch},
          {"layer_ms", layer_ms},
          {"transfer_ms", group.transfer_ms},
          {"variants", std::move(variants)}};
}

void PrintGroup(const VariantGroup& group) {
  const double layer_ms = LayerMs(group);
  Print("budget {}, batch {}\n{:<36}{:>10}{:>10}{:>20}{:>10}{:>9}{:>9}{:>9}{:>10}\n", group.budget,
        group.batch, "  strategy", "tokens/s", "ms a step", "(min .. max)", "stalled", "hits",
        "Belady", "global", "prefetch*");
  for (const Variant& v : group.variants) {
    const std::string name =
        v.budget.empty() ? v.strategy : fmt::format("{}@{}", v.strategy, v.budget);
    if (v.engine == nullptr) {
      Print("  {:<34}{}\n", name, v.refused);
      continue;
    }
    const Row row = RowOf(group, v, layer_ms);
    Print("  {:<34}{:>10}{:>10.3f}{:>20}{:>10.3f}{:>8.1f}%{:>8.1f}%{:>8.1f}%{:>10.3f}\n", name,
          RateText(row.tokens_per_s), row.timing.step_ms.median,
          fmt::format("({:.3f} .. {:.3f})", row.timing.step_ms.min, row.timing.step_ms.max),
          row.stall_ms, 100 * row.stats.hit_ratio(), 100 * row.oracles.belady_layer,
          100 * row.oracles.belady_global, row.bound.belady_ms);
  }
  Print("\n");
}

}  // namespace moert::cli
