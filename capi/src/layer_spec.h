// moert_layer_spec and the C++ MoeLayerSpec.
#ifndef MOERT_CAPI_SRC_LAYER_SPEC_H_
#define MOERT_CAPI_SRC_LAYER_SPEC_H_

#include "absl/status/statusor.h"
#include "moert.h"
#include "moert/model.h"

namespace moert::capi {

moert_layer_spec ToC(const MoeLayerSpec& layer);
/// Refuses flags that are neither 0 nor 1; MoeModelSpec::Validate checks ranges.
absl::StatusOr<MoeLayerSpec> FromC(const moert_layer_spec& spec);

/// Writes layer `index` of a model into the caller's struct.
absl::Status WriteLayer(const MoeModelSpec& model, int32_t index, moert_layer_spec* out);

/// A model from `count` specs, which are their struct_size apart.
absl::StatusOr<MoeModelSpec> ReadLayers(const moert_layer_spec* layers, uint64_t count);

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_LAYER_SPEC_H_
