#include "moert/auto_strategy.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/bytes_text.h"
#include "base/exception_status.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "engine/blueprint.h"
#include "fmt/format.h"
#include "moert/engine.h"

namespace moert {
namespace {

/// What a decode step of one token is expected to take, ms.
struct Expected {
  double layers_ms = 0;
  double waits_ms = 0;
  double ms() const { return layers_ms + waits_ms; }
};

/// `low_share`: of the routing mass, that low versions may answer.
Expected ExpectedStep(const ExpertSource& source, const Blueprint& b, double low_share) {
  const MoeModelSpec& model = source.model();
  // Roughly, of the bundled models' recorded routing: a cache that keeps the share r of the experts
  // misses (1 - r)^4 of its lookups, and what is answered low weighs half of the average.
  constexpr double kPower = 4, kWeight = 0.5;
  // Of the misses that predictions can name.
  constexpr double kPredicted = 0.8;
  const double resident =
      static_cast<double>(b.plan.slots) / static_cast<double>(b.plan.total_experts);
  const double transfer_ns = static_cast<double>(b.profile.TransferNs(b.plan.block_bytes));
  const int low_version = b.versions.back();  // brought for the call
  const double low_ns =
      static_cast<double>(b.profile.TransferNs(source.layout(0, 0, low_version).bytes));
  const double layer_ns = static_cast<double>(b.profile.LayerNs(/*prefill=*/false, 1));
  Expected expected;
  for (const MoeLayerSpec& layer : model.layers) {
    const double k = layer.routing.top_k;
    const double missing = k * std::pow(1 - std::min(1.0, resident), kPower);
    const double low = std::min(missing, k * low_share / kWeight);
    const double loads = missing - low;
    const double hidden = std::min(kPredicted * loads, layer_ns / transfer_ns);
    expected.layers_ms += layer_ns / 1e6;
    expected.waits_ms += ((loads - hidden) * transfer_ns + low * low_ns) / 1e6;
  }
  return expected;
}

absl::StatusOr<Blueprint> Try(const ExpertSource& source, EngineOptions options,
                              const std::string& spec) {
  options.strategy = spec;
  options.customize_strategy = nullptr;  // the host's, for the engine that opens
  return MakeBlueprint(source, options);
}

std::string Room(const Blueprint& b) {
  return fmt::format("room for {} of {} experts in {}", b.plan.slots, b.plan.total_experts,
                     BytesText(b.plan.budget_bytes));
}

/// The pairs of versions of a pack, the high one at or below `scheme`.
std::vector<std::string> GradedSpecs(const ExpertSource& source, const std::string& scheme,
                                     double loss) {
  std::vector<std::string> specs;
  const int high = [&] {
    for (int v = 0; v < source.num_versions(); ++v) {
      if (source.version_name(v) == scheme) return v;
    }
    return 0;
  }();
  for (int low = high + 1; low < source.num_versions(); ++low) {
    specs.push_back(fmt::format("graded:hi={},lo={},loss={:g}", source.version_name(high),
                                source.version_name(low), loss));
  }
  return specs;
}

absl::StatusOr<StrategyParams> ParamsOf(absl::string_view spec) {
  const size_t colon = spec.find(':');
  const absl::string_view keys = colon == spec.npos ? "" : spec.substr(colon + 1);
  return StrategyParams::Parse("auto", std::string(keys), {"loss", "scheme"});
}

}  // namespace

bool IsAuto(absl::string_view spec) { return spec == "auto" || spec.substr(0, 5) == "auto:"; }

absl::StatusOr<StrategyChoice> ChooseStrategy(const ExpertSource& source,
                                              const EngineOptions& options) try {
  if (!IsAuto(options.strategy)) return StrategyChoice{options.strategy, "asked for by name"};
  MOERT_ASSIGN_OR_RETURN(const StrategyParams params, ParamsOf(options.strategy));
  MOERT_ASSIGN_OR_RETURN(const double loss, params.Number("loss", 0, 0, 1));
  const std::string scheme = params.Text("scheme", "");
  const std::string keys = scheme.empty() ? "" : ":scheme=" + scheme;

  // What is wrong with every strategy is better said by the one that needs least.
  MOERT_ASSIGN_OR_RETURN(const Blueprint cache, Try(source, options, "fate" + keys));
  if (const absl::StatusOr<Blueprint> all = Try(source, options, "resident" + keys); all.ok()) {
    return StrategyChoice{
        all->strategy.spec,
        fmt::format("all {} experts take {} of the budget of {}", all->plan.total_experts,
                    BytesText(all->plan.own_bytes), BytesText(all->plan.budget_bytes))};
  }
  const Expected exact = ExpectedStep(source, cache, 0);
  StrategyChoice choice{
      cache.strategy.spec,
      fmt::format("{}: a cache; {:.3g} ms a token expected, {:.3g} of them waiting", Room(cache),
                  exact.ms(), exact.waits_ms)};
  double best_ms = exact.ms();
  const std::vector<std::string> graded =
      loss > 0 ? GradedSpecs(source, scheme, loss) : std::vector<std::string>{};
  for (const std::string& spec : graded) {
    const absl::StatusOr<Blueprint> fits = Try(source, options, spec);
    if (!fits.ok()) continue;
    const Expected expected = ExpectedStep(source, *fits, loss);
    if (expected.ms() >= best_ms) continue;
    best_ms = expected.ms();
    choice = {spec, fmt::format("{}, light misses in fewer bits: {:.3g} ms a token expected, an "
                                "exact cache {:.3g}",
                                Room(*fits), expected.ms(), exact.ms())};
  }
  return choice;
} catch (...) {
  return ExceptionStatus("choosing a strategy");
}

}  // namespace moert
