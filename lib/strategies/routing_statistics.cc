#include "strategies/routing_statistics.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "moert/offline/calibration.h"
#include "moert/tools/env.h"

namespace moert {
namespace {

// The loss of each expert, [E][scheme]: in nats per token if the end-to-end loss was measured, else
// the squared error as a share of the layer's output. All layers have the same unit.
std::vector<double> LossOf(const LayerCalibration& layer, size_t schemes) {
  const bool measured = !layer.loss_per_square.empty();
  const double norm = layer.output_norm > 0 ? layer.output_norm : 1;
  std::vector<double> loss;
  loss.reserve(layer.selections.size() * schemes);
  for (int e = 0; e < static_cast<int>(layer.selections.size()); ++e) {
    for (size_t s = 0; s < schemes; ++s) {
      double sum = 0;
      for (int b = 0; b < kLinearBlocks; ++b) {
        const double share = layer.Delta(e, b, s, schemes) / norm;
        sum += measured ? layer.Nats(e, b, s, schemes) : share * share;
      }
      loss.push_back(sum);
    }
  }
  return loss;
}

// Index of a version among the calibrated schemes; -1: bf16, the reference of all losses.
absl::StatusOr<int> SchemeOf(const RoutingStatistics& statistics, const std::string& version) {
  const std::vector<std::string>& schemes = statistics.schemes;
  const auto at = std::find(schemes.begin(), schemes.end(), version);
  if (at != schemes.end()) return static_cast<int>(at - schemes.begin());
  if (version == "bf16") return -1;
  return InvalidArgument("{}: {} was not calibrated, only {}", statistics.file, version,
                         fmt::join(schemes, ", "));
}

}  // namespace

absl::StatusOr<RoutingStatistics> ReadRoutingStatistics(const std::string& path) {
  MOERT_ASSIGN_OR_RETURN(Calibration calibration, ReadCalibration(path, Env::Default()));
  RoutingStatistics statistics{path, std::move(calibration.model), {}, {}};
  for (const Scheme& scheme : calibration.schemes) statistics.schemes.push_back(scheme.Name());
  for (LayerCalibration& layer : calibration.layers) {
    std::vector<double> loss = LossOf(layer, calibration.schemes.size());
    statistics.layers.push_back(
        {std::move(layer.selections), layer.cross_layer_accuracy, std::move(loss)});
  }
  return statistics;
}

int64_t StatisticsBytes(const RoutingStatistics& statistics) {
  size_t bytes = statistics.model.layers.size() * sizeof(MoeLayerSpec);
  for (const RoutingStatistics::Layer& layer : statistics.layers) {
    bytes += sizeof(layer) + layer.selections.size() * sizeof(int64_t) +
             layer.loss.size() * sizeof(double);
  }
  return static_cast<int64_t>(bytes);
}

absl::Status CheckSameModel(const RoutingStatistics& statistics, const MoeModelSpec& model) {
  return CheckSameModel(statistics.file, statistics.model, model);
}

absl::Status CheckSameModel(const std::string& file, const MoeModelSpec& theirs,
                            const MoeModelSpec& model) {
  if (theirs.num_layers() != model.num_layers()) {
    return InvalidArgument("{}: is of a model of {} MoE layers, not of {}", file,
                           theirs.num_layers(), model.num_layers());
  }
  for (size_t l = 0; l < model.layers.size(); ++l) {
    const MoeLayerSpec& a = theirs.layers[l];
    const MoeLayerSpec& b = model.layers[l];
    if (a.num_experts != b.num_experts) {
      return InvalidArgument("{}: layer {} has {} experts there and {} in the model", file, l,
                             a.num_experts, b.num_experts);
    }
    if (a.hidden != b.hidden || a.intermediate != b.intermediate) {
      return InvalidArgument("{}: experts of layer {} are {} x {} there and {} x {} in the model",
                             file, l, a.hidden, a.intermediate, b.hidden, b.intermediate);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> LossPerSelection(const RoutingStatistics& statistics,
                                                     absl::Span<const std::string> versions) {
  constexpr double kPrior = 16;  // weight of the layer's mean, in selections
  std::vector<int> schemes;
  for (const std::string& version : versions) {
    MOERT_ASSIGN_OR_RETURN(schemes.emplace_back(), SchemeOf(statistics, version));
  }
  std::vector<double> result;
  for (const RoutingStatistics::Layer& layer : statistics.layers) {
    const size_t experts = layer.selections.size();
    const auto lost = [&](size_t expert, int scheme) {
      return scheme < 0
                 ? 0
                 : layer.loss[expert * statistics.schemes.size() + static_cast<size_t>(scheme)];
    };
    const auto tokens = static_cast<double>(
        std::accumulate(layer.selections.begin(), layer.selections.end(), int64_t{0}));
    std::vector<double> means;
    for (const int scheme : schemes) {
      double all = 0;
      for (size_t e = 0; e < experts; ++e) all += lost(e, scheme);
      means.push_back(all / std::max(tokens, 1.0));
    }
    for (size_t e = 0; e < experts; ++e) {
      for (size_t v = 0; v < schemes.size(); ++v) {
        result.push_back((lost(e, schemes[v]) + kPrior * means[v]) /
                         (static_cast<double>(layer.selections[e]) + kPrior));
      }
    }
  }
  return result;
}

std::vector<double> SelectionsOf(const RoutingStatistics* statistics) {
  std::vector<double> selections;
  if (statistics == nullptr) return selections;
  for (const RoutingStatistics::Layer& layer : statistics->layers) {
    selections.insert(selections.end(), layer.selections.begin(), layer.selections.end());
  }
  return selections;
}

}  // namespace moert
