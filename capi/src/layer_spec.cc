#include "layer_spec.h"

#include "base/status_macros.h"
#include "guard.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

constexpr uint64_t kMaxLayers = 4096;  // far above any model

constexpr auto kFields = [](auto& c, auto& layer, const auto& visit) {
  visit(c.hidden, layer.hidden);
  visit(c.intermediate, layer.intermediate);
  visit(c.shared_intermediate, layer.shared_intermediate);
  visit(c.model_layer, layer.model_layer);
  visit(c.num_experts, layer.num_experts);
  visit(c.top_k, layer.routing.top_k);
  visit(c.routing, layer.routing.kind);
  visit(c.activation, layer.activation.function);
  visit(c.activation_alpha, layer.activation.alpha);
  visit(c.activation_limit, layer.activation.limit);
  visit(c.up_offset, layer.activation.up_offset);
  visit(c.expert_bias, layer.expert_bias);
  visit(c.logit_bias, layer.routing.logit_bias);
  visit(c.weight_input, layer.routing.weight_input);
  visit(c.expert_scales, layer.routing.expert_scales);
  visit(c.hash_vocab, layer.routing.hash_vocab);
  visit(c.shared_gate, layer.shared_gate);
  visit(c.renormalize, layer.routing.renormalize);
  visit(c.selection_bias, layer.routing.selection_bias);
  visit(c.num_groups, layer.routing.num_groups);
  visit(c.top_groups, layer.routing.top_groups);
  visit(c.scaling, layer.routing.scaling);
  visit(c.sparsemixer_eps, layer.routing.sparsemixer_eps);
};

}  // namespace

moert_layer_spec ToC(const MoeLayerSpec& layer) {
  auto spec = MakeC<moert_layer_spec>(kFields, layer);
  spec.ungated = !layer.activation.gated;
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
  auto layer = MakeCpp<MoeLayerSpec>(kFields, spec);
  layer.activation.gated = spec.ungated == 0;
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
  MoeModelSpec model;
  model.architecture = "host";
  MOERT_RETURN_IF_ERROR(
      ReadArray(layers, count, "layers", [&](uint64_t, const auto* in) -> absl::Status {
        moert_layer_spec spec = ToC(MoeLayerSpec{});
        MOERT_RETURN_IF_ERROR(ReadStruct(in, "layers[]", &spec));
        MOERT_ASSIGN_OR_RETURN(const MoeLayerSpec layer, FromC(spec));
        model.layers.push_back(layer);
        return absl::OkStatus();
      }));
  MOERT_RETURN_IF_ERROR(model.Validate());
  return model;
}

}  // namespace moert::capi

extern "C" void moert_layer_spec_init(moert_layer_spec* spec, uint64_t size) {
  moert::capi::InitStruct(spec, size, moert::capi::ToC(moert::MoeLayerSpec{}));
}
