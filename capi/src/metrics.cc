#include "moert/tools/metrics.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "guard.h"
#include "handles.h"
#include "moert/parallel/peer_tier.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

moert_stats ToC(const EngineStats& s) {
  moert_stats c{};
  c.budget_bytes = s.budget_bytes;
  c.peak_bytes = s.peak_bytes;
  c.lookups = s.lookups;
  c.hits_resident = s.hits_resident;
  c.hits_prefetched = s.hits_prefetched;
  c.late = s.late;
  c.loads = s.loads;
  c.prefetches = s.prefetch_issued;
  c.bytes_loaded = s.bytes_loaded;
  c.evictions = s.evictions;
  c.stalled_ns = StalledNs(s);
  c.substituted = s.slots_substituted;
  c.low_answers = s.low_answers;
  c.policy_fallbacks = s.policy_fallbacks;
  c.cpu_computed = s.cpu_computed;
  return c;
}

/// The engine's statistics, plus the decisions that the host failed to make.
EngineStats StatsOf(const moert_engine& engine) {
  EngineStats stats = engine.state->engine->stats();
  for (const auto& policies : engine.state->policies) {
    stats.policy_fallbacks += policies->failures.load();
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

moert_code moert_engine_stats(const moert_engine* engine, moert_stats* stats, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(engine);
    return WriteStruct(ToC(StatsOf(*engine)), stats, "stats");
  });
}

moert_code moert_metrics_visit(const moert_engine* engine,
                               void (*visit)(void* user_data, const char* name, double value),
                               void* user_data, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(engine);
    MOERT_REQUIRE_NOT_NULL(visit);
    moert::VisitMetrics(StatsOf(*engine), [&](const moert::Metric& metric) {
      visit(user_data, metric.name, metric.value);
    });
    return absl::OkStatus();
  });
}

moert_code moert_metrics_prometheus(const moert_engine* engine, const char* label, char* buffer,
                                    uint64_t buffer_bytes, uint64_t* needed, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(engine);
    const std::string text = moert::PrometheusText(StatsOf(*engine), label == nullptr ? "" : label);
    return CopyText(text, buffer, buffer_bytes, needed);
  });
}

}  // extern "C"
