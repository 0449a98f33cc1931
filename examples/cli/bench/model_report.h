// The report of decode, prefill and layer, printed and written.
#ifndef MOERT_EXAMPLES_CLI_BENCH_MODEL_REPORT_H_
#define MOERT_EXAMPLES_CLI_BENCH_MODEL_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench/engine_bench.h"
#include "cli/workload/oracles.h"
#include "nlohmann/json.hpp"

namespace moert::cli {

/// Strategies that ran side by side: one budget, one batch.
struct VariantGroup {
  std::string budget;
  int64_t batch = 1;
  std::vector<Variant> variants;
  const RoutingHistory* history = nullptr;  // of the same steps
  double transfer_ms = 0;                   // one expert of the best version
};

nlohmann::json ToJson(const VariantGroup& group);
void PrintGroup(const VariantGroup& group);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_MODEL_REPORT_H_
