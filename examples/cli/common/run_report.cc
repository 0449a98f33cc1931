#include "cli/common/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cli/common/output.h"
#include "cli/common/report.h"
#include "util/bytes_text.h"

namespace moert::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Latency {
  std::optional<double> mean, p50, p99;
};

// Nearest-rank percentiles.
Latency Summarize(std::vector<double> ms) {
  if (ms.empty()) return {};
  std::sort(ms.begin(), ms.end());
  const auto rank = [&](double p) {
    const double index = std::ceil(p * static_cast<double>(ms.size())) - 1.0;
    return ms[static_cast<size_t>(std::max(0.0, index))];
  };
  const double sum = std::accumulate(ms.begin(), ms.end(), 0.0);
  return {sum / static_cast<double>(ms.size()), rank(0.5), rank(0.99)};
}

// null where there is nothing to say.
Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

std::optional<double> Ratio(double part, double whole) {
  if (whole == 0.0) return std::nullopt;
  return part / whole;
}

std::optional<double> TokensPerSecond(const RunReport& r, const std::optional<double>& step_ms) {
  if (!step_ms || *step_ms <= 0) return std::nullopt;
  return 1e3 * r.step_tokens / *step_ms;
}

double Ms(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

std::string Percent(const std::optional<double>& ratio) {
  return ratio ? fmt::format("{:.1f} %", 100.0 * *ratio) : "-";
}

/// The engine's counters.
void AddCounters(const EngineStats& s, Json* report) {
  Json& j = *report;
  j["experts"] = {{"lookups", s.lookups},
                  {"hits", {{"resident", s.hits_resident}, {"prefetched", s.hits_prefetched}}},
                  {"late", s.late},
                  {"hit_ratio", s.hit_ratio()},
                  {"loads", s.loads},
                  {"low_loads", s.low_loads},
                  {"bytes_loaded", s.bytes_loaded},
                  {"evictions", s.evictions},
                  {"low_answers", s.low_answers},
                  {"cpu_computed", s.cpu_computed},
                  {"cpu_below", s.cpu_below},
                  {"cpu_read_bytes", s.cpu_read_bytes}};
  j["pinned"] = {{"bytes", s.pinned_bytes}, {"swaps", s.pinned_swaps}};
  j["prefetch"] = {
      {"issued", s.prefetch_issued},
      {"cancelled", s.prefetch_cancelled},
      {"useful", s.prefetch_useful},
      {"accuracy", OrNull(Ratio(s.prefetch_useful, s.prefetch_issued))},
      {"recall", OrNull(Ratio(s.prefetch_recalled, s.prefetch_predicted))},
      {"recall_in_window", OrNull(Ratio(s.prefetch_recalled_in_window, s.prefetch_predicted))},
      {"active", OrNull(Ratio(s.prefetch_active, s.prefetch_issued))},
      {"top_score", OrNull(Ratio(s.prefetch_top_score, s.prefetch_issued))},
      {"predictions",
       {{"resident_forward", s.predictions_resident_forward},
        {"next_gate", s.predictions_next_gate}}},
      {"bytes", s.prefetch_bytes},
      {"disabled", s.prefetch_disabled},
      {"disabled_steps", s.prefetch_disabled_steps}};
  j["routing"] = {{"substituted", s.slots_substituted},
                  {"slots", s.slots},
                  {"mass_substituted", Ratio(s.mass_substituted, s.mass).value_or(0.0)},
                  {"worst_request_slots", s.worst_slot_share},
                  {"worst_request_mass", s.worst_mass_share},
                  {"worst_request_mass_low", s.worst_low_share},
                  {"low", s.slots_low},
                  {"mass_low", Ratio(s.mass_low, s.mass).value_or(0.0)},
                  {"hit_ratio_before", OrNull(Ratio(s.model_hits, s.model_lookups))}};
  j["precision"] = {
      {"promotions", s.promotions}, {"demotions", s.demotions}, {"deferred", s.deferred}};
  j["balance"] = {{"t_load_ms", Ms(s.balance_load_ns)}, {"t_cpu_ms", Ms(s.balance_cpu_ns)}};
  j["policy_fallbacks"] = s.policy_fallbacks;
  j["stall_ms"] = {{"total", Ms(StalledNs(s))},
                   {"miss", Ms(s.stall_miss_ns)},
                   {"queue", Ms(s.stall_queue_ns)},
                   {"cpu", Ms(s.stall_cpu_ns)}};
  j["host_syncs"] = s.host_syncs;
  j["graph_captured"] = s.graph_captured;
}

}  // namespace

std::string ReportJson(const RunReport& r, const Engine& engine) {
  const EngineStats s = r.stats ? *r.stats : engine.stats();
  const Latency tpot = Summarize(r.decode_ms);
  Json j;
  j["command"] = r.command;
  j["model"] = r.model;
  j["backend"] = r.backend;
  j["strategy"] = engine.strategy();
  j["promise"] = std::string(PromiseName(engine.promise()));
  j["budget_bytes"] = s.budget_bytes;
  j["peak_bytes"] = s.peak_bytes;
  j["nll"] = OrNull(r.nll);
  j["ppl"] = OrNull(r.ppl);
  j["tokens_scored"] = r.tokens_scored;
  j["window_nll"] = r.window_nll;
  j["text"] = r.text ? Json(*r.text) : Json(nullptr);
  j["tokens"] = r.tokens;
  j["ttft_ms"] = OrNull(r.ttft_ms);
  j["tpot_ms"] = {
      {"mean", OrNull(tpot.mean)}, {"p50", OrNull(tpot.p50)}, {"p99", OrNull(tpot.p99)}};
  j["tokens_per_s"] = OrNull(TokensPerSecond(r, tpot.mean));
  j["prompt_tokens_per_s"] = OrNull(r.prompt_tokens_per_s);
  j["version"] = MOERT_VERSION;
  j["seed"] = r.seed ? Json(*r.seed) : Json(nullptr);
  j["pool_bytes"] = s.pool_bytes;
  AddCounters(s, &j);
  if (r.extra.is_object()) j.update(r.extra);
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string ReportTable(const RunReport& r, const Engine& engine) {
  const EngineStats s = r.stats ? *r.stats : engine.stats();
  const MemoryPlan m = engine.memory();
  const Latency tpot = Summarize(r.decode_ms);
  std::string out;
  const auto line = [&](const char* name, const std::string& value) {
    out += fmt::format("  {:<12} {}\n", name, value);
  };
  line("strategy",
       fmt::format("{} ({})", engine.strategy(), std::string(PromiseName(engine.promise()))));
  line("budget",
       fmt::format("{}: {} fixed, room for {} of {} experts", util::BytesText(s.budget_bytes),
                   util::BytesText(m.fixed_bytes()), m.slots, m.total_experts));
  line("peak", util::BytesText(s.peak_bytes));
  line("lookups", fmt::format("{}: {} resident, {} prefetched, {} loaded on demand, {} late",
                              s.lookups, s.hits_resident, s.hits_prefetched, s.loads, s.late));
  line("hit ratio", Percent(s.hit_ratio()));
  line("loaded", fmt::format("{}, {} evictions", util::BytesText(s.bytes_loaded), s.evictions));
  if (s.prefetch_issued > 0) {
    line("prefetch", fmt::format("{} issued, accuracy {}, recall {}{}", s.prefetch_issued,
                                 Percent(Ratio(s.prefetch_useful, s.prefetch_issued)),
                                 Percent(Ratio(s.prefetch_recalled, s.prefetch_predicted)),
                                 s.prefetch_disabled ? ", disabled itself" : ""));
  }
  if (s.slots_substituted > 0) {
    line("substituted",
         fmt::format("{} of {} routing slots, {} of the mass; hit ratio before it {}",
                     s.slots_substituted, s.slots, Percent(Ratio(s.mass_substituted, s.mass)),
                     Percent(Ratio(s.model_hits, s.model_lookups))));
  }
  line("stalled", fmt::format("{:.1f} ms", Ms(StalledNs(s))));
  if (r.ttft_ms) line("first token", fmt::format("{:.1f} ms", *r.ttft_ms));
  if (tpot.mean) {
    line("per step", fmt::format("{:.2f} ms mean, {:.2f} p50, {:.2f} p99{}", *tpot.mean, *tpot.p50,
                                 *tpot.p99, r.virtual_clock ? " (virtual clock)" : ""));
  }
  const std::optional<double> decode = TokensPerSecond(r, tpot.mean);
  if (decode || r.prompt_tokens_per_s) {
    std::string text = decode ? RateText(*decode) + " tokens/s" : "";
    if (r.prompt_tokens_per_s) {
      text += fmt::format("{}prompt {} tokens/s", text.empty() ? "" : ", ",
                          RateText(*r.prompt_tokens_per_s));
    }
    line("speed", text);
  }
  return out;
}

absl::Status WriteReport(const RunReport& report, const Engine& engine, const std::string& json,
                         bool quiet) {
  if (!quiet) Print("\n{}", ReportTable(report, engine));
  if (json.empty()) return absl::OkStatus();
  return WriteOutput(json, ReportJson(report, engine) + "\n");
}

}  // namespace moert::cli
