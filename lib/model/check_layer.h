// The layer check shared by every call that names a layer.
#ifndef MOERT_LIB_MODEL_CHECK_LAYER_H_
#define MOERT_LIB_MODEL_CHECK_LAYER_H_

#include "absl/status/status.h"
#include "base/errors.h"
#include "moert/model.h"

namespace moert {

/// InvalidArgument unless `layer` is one of the model's.
inline absl::Status CheckLayer(const MoeModelSpec& model, int layer) {
  if (layer >= 0 && layer < model.num_layers()) return absl::OkStatus();
  return InvalidArgument("layer {}: must be in [0, {})", layer, model.num_layers());
}

}  // namespace moert

#endif  // MOERT_LIB_MODEL_CHECK_LAYER_H_
