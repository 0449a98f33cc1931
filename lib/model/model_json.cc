#include "model/model_json.h"

#include <fmt/format.h>

#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "model/config_fields.h"

namespace moert {
namespace {

using nlohmann::json;

constexpr int64_t kMaxInt = INT32_MAX;
constexpr RoutingKind kKinds[] = {RoutingKind::kSoftmaxTopK, RoutingKind::kTopKSoftmax,
                                  RoutingKind::kSigmoidGrouped, RoutingKind::kSparseMixer};
constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh};

std::string Str(absl::string_view s) { return {s.data(), s.size()}; }

// The value of `all` whose name the field holds.
template <typename E, size_t N, typename NameOf>
E Named(ConfigFields& fields, const char* key, const E (&all)[N], NameOf name_of) {
  const std::string name = fields.String(key);
  std::string legal;
  for (const E e : all) {
    if (name == Str(name_of(e))) return e;
    legal += " " + Str(name_of(e));
  }
  fields.Fail(key, "legal are:" + legal);
  return all[0];
}

json LayerToJson(const MoeLayerSpec& l) {
  const RoutingSpec& r = l.routing;
  return {{"model_layer", l.model_layer},
          {"num_experts", l.num_experts},
          {"hidden", l.hidden},
          {"intermediate", l.intermediate},
          {"shared_intermediate", l.shared_intermediate},
          {"shared_gate", l.shared_gate},
          {"activation", Str(ActivationName(l.activation))},
          {"routing", Str(RoutingKindName(r.kind))},
          {"top_k", r.top_k},
          {"renormalize", r.renormalize},
          {"scaling", r.scaling},
          {"num_groups", r.num_groups},
          {"top_groups", r.top_groups},
          {"selection_bias", r.selection_bias},
          {"sparsemixer_eps", r.sparsemixer_eps}};
}

absl::StatusOr<MoeLayerSpec> LayerFromJson(const json& object, const std::string& source) {
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
  r.kind = Named(f, "routing", kKinds, RoutingKindName);
  r.top_k = static_cast<int>(f.Int("top_k", 1, kMaxInt));
  r.renormalize = f.Bool("renormalize");
  r.scaling = static_cast<float>(f.Real("scaling", 0.0, 1e30));
  r.num_groups = static_cast<int>(f.Int("num_groups", 1, kMaxInt));
  r.top_groups = static_cast<int>(f.Int("top_groups", 1, kMaxInt));
  r.selection_bias = f.Bool("selection_bias");
  r.sparsemixer_eps = static_cast<float>(f.Real("sparsemixer_eps", 0.0, 1e30));
  MOERT_RETURN_IF_ERROR(f.status());
  return l;
}

}  // namespace

json ModelToJson(const MoeModelSpec& model) {
  json layers = json::array();
  for (const MoeLayerSpec& l : model.layers) layers.push_back(LayerToJson(l));
  return {{"architecture", model.architecture}, {"layers", std::move(layers)}};
}

absl::StatusOr<MoeModelSpec> ModelFromJson(const json& object, const std::string& source) {
  ConfigFields fields(object, source);
  MoeModelSpec model;
  model.architecture = fields.String("architecture");
  MOERT_RETURN_IF_ERROR(fields.status());
  const json* layers = fields.Find("layers");
  if (layers == nullptr || !layers->is_array()) {
    return absl::InvalidArgumentError(source + ": layers is not a list");
  }
  for (size_t i = 0; i < layers->size(); ++i) {
    MOERT_ASSIGN_OR_RETURN(MoeLayerSpec layer,
                           LayerFromJson((*layers)[i], fmt::format("{}: layer {}", source, i)));
    model.layers.push_back(layer);
  }
  if (const absl::Status s = model.Validate(); !s.ok()) {
    return absl::InvalidArgumentError(fmt::format("{}: {}", source, s.message()));
  }
  return model;
}

}  // namespace moert
