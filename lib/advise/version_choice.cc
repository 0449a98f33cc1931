#include "moert/tools/version_choice.h"

#include <algorithm>
#include <cmath>

#include "base/exception_status.h"
#include "base/status_macros.h"
#include "strategies/routing_statistics.h"

namespace moert {
namespace {

/// The loss of one expert in `format`, in nats per token.
absl::StatusOr<double> ExpertLoss(const Calibration& c, const LayerCalibration& layer, int expert,
                                  const ExpertFormat& format) {
  const Scheme* const blocks[kLinearBlocks] = {&format.gate, &format.up, &format.down};
  double nats = 0;
  for (int b = 0; b < kLinearBlocks; ++b) {
    if (blocks[b]->is_bf16()) continue;
    const auto at = std::find(c.schemes.begin(), c.schemes.end(), *blocks[b]);
    if (at == c.schemes.end()) {
      return absl::NotFoundError(blocks[b]->Name() + " was not calibrated");
    }
    nats += layer.Nats(expert, b, static_cast<size_t>(at - c.schemes.begin()), c.schemes.size());
  }
  return nats;
}

}  // namespace

std::optional<size_t> ChooseVersion(const VersionSnapshot& snapshot) {
  const auto accepted = [&](const VersionOffer& o) { return o.loss <= snapshot.accepted_loss; };
  double least_ms = INFINITY;
  for (const VersionOffer& offer : snapshot.offers) {
    if (accepted(offer)) least_ms = std::min(least_ms, offer.step_ms);
  }
  std::optional<size_t> best;
  for (size_t i = 0; i < snapshot.offers.size(); ++i) {
    const VersionOffer& offer = snapshot.offers[i];
    if (!accepted(offer) || offer.step_ms > least_ms) continue;
    if (!best || offer.loss < snapshot.offers[*best].loss) best = i;
  }
  return best;
}

absl::StatusOr<double> PredictVersionLoss(const Calibration& calibration,
                                          const ExpertSource& source, int version) try {
  const MoeModelSpec& model = source.model();
  MOERT_RETURN_IF_ERROR(CheckSameModel("the calibration", calibration.model, model));
  if (calibration.probe_tokens == 0) {
    return absl::NotFoundError("the calibration has no end-to-end loss (--probe-tokens 0)");
  }
  double nats = 0;
  for (int l = 0; l < model.num_layers(); ++l) {
    for (int e = 0; e < model.layers[l].num_experts; ++e) {
      const RecordLayout& layout = source.layout(l, e, version);
      if (layout.opaque()) return absl::NotFoundError("opaque records have no scheme");
      MOERT_ASSIGN_OR_RETURN(const double lost,
                             ExpertLoss(calibration, calibration.layers[l], e, layout.format));
      nats += lost;
    }
  }
  return std::expm1(nats);
} catch (...) {
  return ExceptionStatus("predicting a loss");
}

}  // namespace moert
