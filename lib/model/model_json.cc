#include "model/model_json.h"

#include <fmt/format.h>

#include "absl/strings/str_cat.h"
#include "base/errors.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "model/config_fields.h"

namespace moert {
namespace {

constexpr int64_t kMaxInt = INT32_MAX;
constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
                                       Activation::kRelu2};

// The value of `all` whose name the field holds.
template <typename E, size_t N, typename NameOf>
E Named(ConfigFields& fields, const char* key, const E (&all)[N], NameOf name_of) {
  const std::string name = fields.String(key);
  std::string legal;
  for (const E e : all) {
    if (name_of(e) == name) return e;
    absl::StrAppend(&legal, " ", name_of(e));
  }
  fields.Fail(key, absl::StrCat("legal are:", legal));
  return all[0];
}

void WriteLayer(const MoeLayerSpec& l, JsonWriter* out) {
  const RoutingSpec& r = l.routing;
  out->BeginObject()
      .Field("activation", ActivationName(l.activation.function))
      .Field("hidden", l.hidden)
      .Field("intermediate", l.intermediate)
      .Field("model_layer", l.model_layer)
      .Field("num_experts", l.num_experts)
      .Field("num_groups", r.num_groups)
      .Field("renormalize", r.renormalize)
      .Field("routing", RoutingKindName(r.kind))
      .Field("scaling", r.scaling)
      .Field("selection_bias", r.selection_bias)
      .Field("shared_gate", l.shared_gate)
      .Field("shared_intermediate", l.shared_intermediate)
      .Field("sparsemixer_eps", r.sparsemixer_eps)
      .Field("top_groups", r.top_groups)
      .Field("top_k", r.top_k);
  // Written only if not the default, so that files of models without them stay unchanged.
  const ExpertActivation& a = l.activation;
  if (!a.gated) out->Field("gated", false);
  if (a.alpha != 1) out->Field("activation_alpha", a.alpha);
  if (a.limit != 0) out->Field("activation_limit", a.limit);
  if (a.up_offset != 0) out->Field("up_offset", a.up_offset);
  if (l.expert_bias) out->Field("expert_bias", true);
  if (r.logit_bias) out->Field("logit_bias", true);
  if (r.weight_input) out->Field("weight_input", true);
  if (r.expert_scales) out->Field("expert_scales", true);
  if (r.hash_vocab > 0) out->Field("hash_vocab", r.hash_vocab);
  out->EndObject();
}

absl::StatusOr<MoeLayerSpec> LayerFromJson(JsonValue object, const std::string& source) {
  if (!object.is_object()) return absl::InvalidArgumentError(source + ": not an object");
  ConfigFields f(object, source);
  MoeLayerSpec l;
  l.model_layer = static_cast<int>(f.Int("model_layer", 0, kMaxInt));
  l.num_experts = static_cast<int>(f.Int("num_experts", 1, kMaxInt));
  l.hidden = f.Int("hidden", 1, kMaxInt);
  l.intermediate = f.Int("intermediate", 1, kMaxInt);
  l.shared_intermediate = f.Int("shared_intermediate", 0, kMaxInt);
  l.shared_gate = f.Bool("shared_gate");
  l.activation = Named(f, "activation", kActivations, ActivationName);
  RoutingSpec& r = l.routing;
  r.kind = Named(f, "routing", kRoutingKinds, RoutingKindName);
  r.top_k = static_cast<int>(f.Int("top_k", 1, kMaxInt));
  r.renormalize = f.Bool("renormalize");
  r.scaling = static_cast<float>(f.Real("scaling", 0.0, 1e30));
  r.num_groups = static_cast<int>(f.Int("num_groups", 1, kMaxInt));
  r.top_groups = static_cast<int>(f.Int("top_groups", 1, kMaxInt));
  r.selection_bias = f.Bool("selection_bias");
  r.sparsemixer_eps = static_cast<float>(f.Real("sparsemixer_eps", 0.0, 1e30));
  l.activation.gated = f.Bool("gated", true);
  l.activation.alpha = static_cast<float>(f.Real("activation_alpha", 0.0, 1e30, 1.0));
  l.activation.limit = static_cast<float>(f.Real("activation_limit", 0.0, 1e30, 0.0));
  l.activation.up_offset = static_cast<float>(f.Real("up_offset", -1e30, 1e30, 0.0));
  l.expert_bias = f.Bool("expert_bias", false);
  r.logit_bias = f.Bool("logit_bias", false);
  r.weight_input = f.Bool("weight_input", false);
  r.expert_scales = f.Bool("expert_scales", false);
  r.hash_vocab = f.Int("hash_vocab", 0, kMaxInt, 0);
  MOERT_RETURN_IF_ERROR(f.status());
  return l;
}

}  // namespace

void WriteModel(const MoeModelSpec& model, JsonWriter* out) {
  out->BeginObject().Field("architecture", model.architecture).Key("layers").BeginArray();
  for (const MoeLayerSpec& l : model.layers) WriteLayer(l, out);
  out->EndArray().EndObject();
}

absl::StatusOr<MoeModelSpec> ModelFromJson(JsonValue object, const std::string& source) {
  if (!object.is_object()) return absl::InvalidArgumentError(source + " is not an object");
  ConfigFields fields(object, source);
  MoeModelSpec model;
  model.architecture = fields.String("architecture");
  MOERT_RETURN_IF_ERROR(fields.status());
  const auto layers = fields.Find("layers");
  if (!layers || !layers->is_array()) {
    return absl::InvalidArgumentError(source + ": layers is not a list");
  }
  for (const JsonValue entry : layers->elements()) {
    MOERT_ASSIGN_OR_RETURN(
        MoeLayerSpec layer,
        LayerFromJson(entry, fmt::format("{}: layer {}", source, model.layers.size())));
    model.layers.push_back(layer);
  }
  if (const absl::Status s = model.Validate(); !s.ok()) {
    return InvalidArgument("{}: {}", source, s.message());
  }
  return model;
}

}  // namespace moert
