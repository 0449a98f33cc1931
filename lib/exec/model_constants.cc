#include "exec/model_constants.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace moert {

absl::StatusOr<ModelConstants> ModelConstants::Read(const ExpertSource& source) {
  ModelConstants all;
  for (int l = 0; l < source.model().num_layers(); ++l) {
    MOERT_ASSIGN_OR_RETURN(LayerConstants layer, source.ReadConstants(l));
    if (source.model().layers[l].routing.external()) {
      layer.gate = {};  // not used for routing, and no budget has room for it
      layer.selection_bias = {};
    }
    all.shared_.emplace_back(static_cast<int64_t>(layer.shared_expert.size()));
    std::copy(layer.shared_expert.begin(), layer.shared_expert.end(), all.shared_.back().data());
    layer.shared_expert = {};
    all.layers_.push_back(std::move(layer));
  }
  return all;
}

absl::StatusOr<ModelConstants> ModelConstants::SizesOnly(const MoeModelSpec& model) {
  ModelConstants all;
  for (const MoeLayerSpec& spec : model.layers) {
    LayerConstants layer;
    if (spec.shared_intermediate > 0) {
      MOERT_ASSIGN_OR_RETURN(layer.shared_layout, SharedRecordLayout(spec));
    }
    all.shared_.emplace_back();
    all.layers_.push_back(std::move(layer));
  }
  return all;
}

std::vector<RouterConstants> ModelConstants::routers() const {
  std::vector<RouterConstants> routers;
  for (const LayerConstants& layer : layers_) routers.push_back(RouterConstants::Of(layer));
  return routers;
}

}  // namespace moert
