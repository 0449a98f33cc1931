#include "offline/sensitivity.h"

#include <cmath>
#include <utility>

#include "base/status_macros.h"

namespace moert::offline {
namespace {

/// Measures the schemes' changes, and the unquantized outputs.
absl::StatusOr<ExpertChanges> Measure(const MoeLayerSpec& layer,
                                      const SensitivitySettings& settings,
                                      absl::Span<const float> token_weights, int64_t probe_rows,
                                      ExpertBlocks* blocks, Floats* outputs) {
  MOERT_RETURN_IF_ERROR(blocks->Outputs(outputs));
  const size_t count = settings.schemes.size();
  ExpertChanges changes;
  changes.delta.assign(3 * count, 0.0);
  if (token_weights.empty() || count == 0) return changes;
  MOERT_RETURN_IF_ERROR(blocks->Prepare(token_weights));
  for (size_t k = 0; k < count; ++k) {
    const Scheme& scheme = settings.schemes[k];
    if (scheme.is_bf16()) continue;
    MOERT_ASSIGN_OR_RETURN(
        const RecordLayout layout,
        ExpertRecordLayout(layer, ExpertFormat::Uniform(scheme, settings.hadamard)));
    MOERT_RETURN_IF_ERROR(blocks->Begin(layout));
    for (const Projection block : {Projection::kGate, Projection::kUp, Projection::kDown}) {
      MOERT_ASSIGN_OR_RETURN(changes.delta[static_cast<size_t>(block) * count + k],
                             blocks->Change(block));
    }
    if (static_cast<int>(k) == settings.probe && probe_rows > 0) {
      MOERT_RETURN_IF_ERROR(blocks->LastChanges(probe_rows, &changes));
    }
  }
  return changes;
}

}  // namespace

absl::StatusOr<ExpertChanges> ExpertSensitivity(
    const MoeLayerSpec& layer, const SensitivitySettings& settings, const ExpertMatrices& weights,
    absl::Span<const float> token_weights, int64_t probe_rows, const Compute& compute, Floats* x) {
  Floats outputs;
  const auto measure = [&](ExpertBlocks* blocks) {
    return Measure(layer, settings, token_weights, probe_rows, blocks, &outputs);
  };
  absl::StatusOr<ExpertChanges> changes = absl::UnavailableError("no device");
  if (const auto blocks = BlocksOnDevice(layer, settings, weights, *x)) {
    changes = measure(blocks.get());
  }
  if (!changes.ok()) changes = measure(BlocksOnCpu(layer, settings, weights, compute, *x).get());
  MOERT_RETURN_IF_ERROR(changes.status());
  for (const double d : changes->delta) {
    if (!std::isfinite(d)) {
      return absl::InvalidArgumentError("an activation or weight is not finite");
    }
  }
  *x = std::move(outputs);
  return changes;
}

}  // namespace moert::offline
