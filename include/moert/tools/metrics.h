// The numbers of EngineStats under stable names, for hosts that report them.
#ifndef MOERT_TOOLS_METRICS_H_
#define MOERT_TOOLS_METRICS_H_

#include "absl/functional/function_ref.h"
#include "moert/stats.h"

namespace moert {

/// All text is static. docs/reference/metrics.md lists them.
struct Metric {
  const char* name = nullptr;  // "moert_lookups_total": a Prometheus name
  const char* type = nullptr;  // "counter" or "gauge"
  const char* help = nullptr;
  double value = 0;  // seconds, bytes or a count, as the name says
};

/// Every metric, in a fixed order. PrometheusText writes the same.
void VisitMetrics(const EngineStats& stats, absl::FunctionRef<void(const Metric&)> visit);

}  // namespace moert

#endif  // MOERT_TOOLS_METRICS_H_
