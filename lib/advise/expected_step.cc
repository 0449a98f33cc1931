#include "advise/expected_step.h"

#include <algorithm>
#include <cmath>

namespace moert {

ExpectedTimes ExpectedStep(const ExpertSource& source, const Blueprint& b, double low_share,
                           bool served) {
  const MoeModelSpec& model = source.model();
  // Roughly, of the bundled models' recorded routing: a cache that keeps the share r of the experts
  // misses (1 - r)^4 of its lookups, and what is answered low weighs half of the average.
  constexpr double kPower = 4, kWeight = 0.5;
  // Predictions can name this share of the misses.
  constexpr double kPredicted = 0.8;
  const double resident =
      static_cast<double>(b.plan.slots) / static_cast<double>(b.plan.total_experts);
  const int64_t bytes = b.plan.all_bytes / b.plan.total_experts;  // of an expert, the mean
  const auto transfer_ns = static_cast<double>(b.profile.TransferNs(bytes));
  const int low_version = b.versions.back();  // brought for the call
  const auto low_ns =
      static_cast<double>(b.profile.TransferNs(source.layout(0, 0, low_version).bytes));
  const auto layer_ns = static_cast<double>(b.profile.LayerNs(/*prefill=*/false, 1));
  const auto rule_ns =
      static_cast<double>(served && b.served().by_request() ? b.profile.request_rule_ns : 0);
  const double expert_ns = b.profile.ExpertNs(bytes, 1, source.version_name(b.versions.front()));
  ExpectedTimes expected;
  for (const MoeLayerSpec& layer : model.layers) {
    const double k = layer.routing.top_k;
    const double missing = k * std::pow(1 - std::min(1.0, resident), kPower);
    const double low = std::min(missing, k * low_share / kWeight);
    const double loads = missing - low;
    const double hidden = std::min(kPredicted * loads, layer_ns / transfer_ns);
    expected.layers_ms += (layer_ns + rule_ns + k * expert_ns) / 1e6;
    expected.waits_ms += ((loads - hidden) * transfer_ns + low * low_ns) / 1e6;
  }
  return expected;
}

}  // namespace moert
