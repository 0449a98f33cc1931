// Prints the metrics as docs/reference/metrics.md lists them.
#include <cstdio>

#include "moert/tools/metrics.h"

int main() {
  std::printf("| name | type | what |\n|---|---|---|\n");
  moert::VisitMetrics({}, [](const moert::Metric& metric) {
    std::printf("| `%s` | %s | %s |\n", metric.name, metric.type, metric.help);
  });
}
