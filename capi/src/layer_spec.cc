#include "layer_spec.h"

#include <cstddef>

#include "base/status_macros.h"
#include "guard.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

// Far above any model; keeps count x stride far from overflow.
constexpr uint64_t kMaxLayers = 4096;
constexpr uint64_t kMaxStride = 1 << 16;

}  // namespace

moert_layer_spec ToC(const MoeLayerSpec& layer) {
  moert_layer_spec spec{};
  spec.hidden = layer.hidden;
  spec.intermediate = layer.intermediate;
  spec.shared_intermediate = layer.shared_intermediate;
  spec.model_layer = layer.model_layer;
  spec.num_experts = layer.num_experts;
  spec.top_k = layer.routing.top_k;
  spec.routing = static_cast<moert_routing_kind>(layer.routing.kind);
  spec.activation = static_cast<moert_activation>(layer.activation.function);
  spec.ungated = !layer.activation.gated;
  spec.activation_alpha = layer.activation.alpha;
  spec.activation_limit = layer.activation.limit;
  spec.up_offset = layer.activation.up_offset;
  spec.expert_bias = layer.expert_bias;
  spec.logit_bias = layer.routing.logit_bias;
  spec.weight_input = layer.routing.weight_input;
  spec.expert_scales = layer.routing.expert_scales;
  spec.hash_vocab = static_cast<int32_t>(layer.routing.hash_vocab);
  spec.shared_gate = layer.shared_gate;
  spec.renormalize = layer.routing.renormalize;
  spec.selection_bias = layer.routing.selection_bias;
  spec.num_groups = layer.routing.num_groups;
  spec.top_groups = layer.routing.top_groups;
  spec.scaling = layer.routing.scaling;
  spec.sparsemixer_eps = layer.routing.sparsemixer_eps;
  return spec;
}

absl::StatusOr<MoeLayerSpec> FromC(const moert_layer_spec& spec) {
  MOERT_RETURN_IF_ERROR(CheckFlag("layers[].shared_gate", spec.shared_gate));
  MOERT_RETURN_IF_ERROR(CheckFlag("layers[].renormalize", spec.renormalize));
  MOERT_RETURN_IF_ERROR(CheckFlag("layers[].selection_bias", spec.selection_bias));
  MOERT_RETURN_IF_ERROR(CheckFlag("layers[].logit_bias", spec.logit_bias));
  MOERT_RETURN_IF_ERROR(CheckFlag("layers[].weight_input", spec.weight_input));
  MOERT_RETURN_IF_ERROR(CheckFlag("layers[].expert_scales", spec.expert_scales));
  MOERT_RETURN_IF_ERROR(CheckFlag("layers[].ungated", spec.ungated));
  MOERT_RETURN_IF_ERROR(CheckFlag("layers[].expert_bias", spec.expert_bias));
  if (spec.reserved != 0) return absl::InvalidArgumentError("layers[].reserved is not 0");
  MoeLayerSpec layer;
  layer.hidden = spec.hidden;
  layer.intermediate = spec.intermediate;
  layer.shared_intermediate = spec.shared_intermediate;
  layer.model_layer = spec.model_layer;
  layer.num_experts = spec.num_experts;
  layer.shared_gate = spec.shared_gate != 0;
  layer.activation = static_cast<Activation>(spec.activation);
  layer.activation.gated = spec.ungated == 0;
  layer.activation.alpha = spec.activation_alpha;
  layer.activation.limit = spec.activation_limit;
  layer.activation.up_offset = spec.up_offset;
  layer.expert_bias = spec.expert_bias != 0;
  layer.routing.logit_bias = spec.logit_bias != 0;
  layer.routing.weight_input = spec.weight_input != 0;
  layer.routing.expert_scales = spec.expert_scales != 0;
  layer.routing.hash_vocab = spec.hash_vocab;
  layer.routing.kind = static_cast<RoutingKind>(spec.routing);
  layer.routing.top_k = spec.top_k;
  layer.routing.renormalize = spec.renormalize != 0;
  layer.routing.selection_bias = spec.selection_bias != 0;
  layer.routing.num_groups = spec.num_groups;
  layer.routing.top_groups = spec.top_groups;
  layer.routing.scaling = spec.scaling;
  layer.routing.sparsemixer_eps = spec.sparsemixer_eps;
  return layer;
}

absl::Status WriteLayer(const MoeModelSpec& model, int32_t index, moert_layer_spec* out) {
  MOERT_RETURN_IF_ERROR(CheckRange("layer", index, 0, model.num_layers() - 1));
  return WriteStruct(ToC(model.layers[index]), out, "spec");
}

absl::StatusOr<MoeModelSpec> ReadLayers(const moert_layer_spec* layers, uint64_t count) {
  if (layers == nullptr) return absl::InvalidArgumentError("layers: must not be NULL");
  if (count < 1 || count > kMaxLayers) {
    return Illegal("num_layers is ", count, ", legal is 1 to ", kMaxLayers);
  }
  const uint64_t stride = layers->struct_size;
  if (stride > kMaxStride || stride % alignof(moert_layer_spec) != 0) {
    return Illegal("layers[0].struct_size is ", stride, ", which is no size of moert_layer_spec");
  }
  MoeModelSpec model;
  model.architecture = "host";
  const auto* bytes = reinterpret_cast<const unsigned char*>(layers);
  for (uint64_t i = 0; i < count; ++i) {
    const auto* in = reinterpret_cast<const moert_layer_spec*>(bytes + i * stride);
    if (in->struct_size != stride) {
      return Illegal("layers[", i, "].struct_size is ", in->struct_size, ", that of layers[0] is ",
                     stride);
    }
    moert_layer_spec spec = ToC(MoeLayerSpec{});
    MOERT_RETURN_IF_ERROR(ReadStruct(in, "layers[]", &spec));
    MOERT_ASSIGN_OR_RETURN(MoeLayerSpec layer, FromC(spec));
    model.layers.push_back(layer);
  }
  MOERT_RETURN_IF_ERROR(model.Validate());
  return model;
}

}  // namespace moert::capi

extern "C" void moert_layer_spec_init(moert_layer_spec* spec, uint64_t size) {
  moert::capi::InitStruct(spec, size, moert::capi::ToC(moert::MoeLayerSpec{}));
}
