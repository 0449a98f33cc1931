#include "checkpoint/moe_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "absl/strings/str_replace.h"
#include "checkpoint/config_account.h"
#include "model/model_json.h"

namespace moert {
namespace {

bool Contains(std::optional<JsonValue> list, JsonValue string) {
  if (!list) return false;
  for (const JsonValue e : list->elements()) {
    if (string.Is(*e.AsString())) return true;
  }
  return false;
}

// A list with the kind of each layer, under the first name of `key` that is present.
std::optional<JsonValue> LayerKinds(const FamilyFields& family, const HfConfig& config) {
  const std::string name = family.Present("layer_kinds");
  if (name.empty()) return std::nullopt;
  const auto kinds = family.fields().Find(name.c_str());
  const auto layers = static_cast<size_t>(config.num_hidden_layers);
  bool legal = kinds->is_array() && (layers == 0 || kinds->size() == layers);
  for (const JsonValue kind : kinds->elements()) legal = legal && kind.is_string();
  if (legal) return kinds;
  family.fields().Fail(name.c_str(), fmt::format("legal is a list of {} names", layers));
  return std::nullopt;
}

// A list of 0 and 1 or of booleans, or a number of 1.
std::vector<int64_t> ReadFlags(const char* key, ConfigFields& fields) {
  const auto list = fields.Find(key);
  std::vector<int64_t> flags;
  for (const JsonValue e : list->elements()) {
    if (!e.is_bool()) break;
    flags.push_back(e.AsBool() ? 1 : 0);
  }
  if (list->is_array() && flags.size() == list->size()) return flags;
  return fields.Ints(key, 0, 1, /*scalar_too=*/true);
}

// From first_moe to last_moe (-1: the last), every moe_step-th, counted from 1 or from an offset.
void PlaceBySteps(const FamilyFields& family, HfConfig& config) {
  const int64_t layers = config.num_hidden_layers;
  const int64_t first = family.Int("first_moe", 0, layers, 0);
  const int64_t last = family.Int("last_moe", -1, layers - 1, -1);
  const int64_t step = family.Int("moe_step", 1, kMaxLayerCount, 1);
  const int64_t offset = family.Int("moe_offset", 0, kMaxLayerCount, 0);
  ConfigFields& fields = family.fields();
  const auto listed = [&](const char* key) {
    const std::string name = family.Present(key);
    return name.empty() ? std::vector<int64_t>() : fields.Ints(name.c_str(), 0, layers - 1);
  };
  const std::vector<int64_t> dense = listed("dense_layers"), moe = listed("moe_layers");
  for (int64_t i = 0; i < layers; ++i) {
    const bool placed = i >= first && (last < 0 || i <= last) && (i - offset) % step == 0;
    config.is_moe[i] = placed && moe.empty();
  }
  const std::string flags = family.Present("moe_flags");
  if (!flags.empty()) {
    const std::vector<int64_t> flag = ReadFlags(flags.c_str(), fields);
    if (flag.size() > 1 && flag.size() != config.is_moe.size()) {
      return fields.Fail(flags.c_str(), fmt::format("legal is a list of {} numbers", layers));
    }
    for (size_t i = 0; i < config.is_moe.size() && !flag.empty(); ++i) {
      config.is_moe[i] = flag[std::min(i, flag.size() - 1)] != 0;
    }
  }
  for (const int64_t i : moe) config.is_moe[i] = true;
  for (const int64_t i : dense) config.is_moe[i] = false;
}

// One letter a layer.
void PlaceByLetters(const std::string& field, const FamilyFields& family, HfConfig& config) {
  const std::string letters = family.fields().String(field.c_str());
  if (letters.size() != config.is_moe.size()) {
    return family.fields().Fail(
        field.c_str(), fmt::format("legal is a string of {} letters", config.is_moe.size()));
  }
  const std::string moe = family.family().Text("moe_letter");
  for (size_t i = 0; i < letters.size(); ++i) config.is_moe[i] = letters[i] == moe[0];
}

std::optional<RoutingKind> ParseRouting(const std::string& name) {
  for (const RoutingKind kind : kRoutingKinds) {
    if (RoutingKindName(kind) == name) return kind;
  }
  return std::nullopt;
}

RoutingSpec ReadRouting(const FamilyFields& family, int experts) {
  RoutingSpec r;
  const auto kind = ParseRouting(family.family().Text("routing"));
  if (!kind) family.fields().Fail("model_type", "described with a routing that does not exist");
  r.kind = kind.value_or(RoutingKind::kExternal);
  r.top_k = static_cast<int>(family.Int("top_k", 1, experts, 1));
  r.renormalize = family.Bool("renormalize", false);
  r.scaling = static_cast<float>(family.Real("scaling", 1e-6, 1e6, 1));
  if (family.Holds("groups_if")) {
    r.num_groups = static_cast<int>(family.Int("groups", 1, experts, 1));
    r.top_groups = static_cast<int>(family.Int("top_groups", 1, r.num_groups, 1));
  }
  r.sparsemixer_eps = static_cast<float>(family.Real("sparsemixer_eps", 1e-6, 1, 0.01));
  r.weight_input = family.family().Flag("weight_input");
  if (family.Holds("library_routes_if")) return r;
  RoutingSpec external;
  external.kind = RoutingKind::kExternal;
  external.top_k = r.top_k;
  return external;
}

// A shared width, or the number shared_experts of experts of some width; stored as one wide expert.
int64_t ReadShared(const FamilyFields& family, int64_t width) {
  const ModelFamily& f = family.family();
  if (!family.Holds("shared_if")) return 0;
  if (f.Find("shared_width")) return family.Int("shared_width", 0, kMaxFfnWidth, 0);
  const int64_t unit = family.Int("shared_unit", 1, kMaxFfnWidth, width);
  return unit * family.Int("shared_experts", 0, kMaxFfnWidth / unit, 0);
}

// Reads one set of tensor names. `layer`: the prefix of the names of a layer's tensors.
MoeTensorNames ReadNames(JsonValue object, const std::string& layer, const MoeLayerSpec& spec) {
  const auto text = [&](const char* key, const char* def) {
    const auto value = object.Find(key);
    return value ? *value->AsString() : std::string(def);
  };
  const std::string block = text("block", "mlp.");
  const auto full = [&](const std::string& name) {
    return name.empty() ? "" : absl::StrReplaceAll(layer + name, {{"{block}", block}});
  };
  const auto words = [&](const char* key, auto& out, const auto& put) {
    const auto list = object.Find(key);
    size_t i = 0;
    if (!list) return;
    for (const JsonValue e : list->elements()) {
      if (i < out.size()) out[i++] = put(*e.AsString());
    }
  };
  const auto same = [](const std::string& s) { return s; };
  MoeTensorNames names;
  names.projections = {"gate_proj", "up_proj", "down_proj"};
  words("projections", names.projections, same);
  words("shared_projections", names.shared_projections, same);
  words("stacked", names.stacked, full);
  names.expert = full(text("experts", "{block}experts.{expert}.{projection}.weight"));
  names.router = full(text("router", "{block}gate.weight"));
  names.selection_bias = full(text("selection_bias", ""));
  names.router_bias = full(text("router_bias", ""));
  names.expert_scales = full(text("expert_scales", ""));
  names.hash_experts = full(text("hash_experts", ""));
  if (spec.shared_intermediate > 0) {
    names.shared_expert = full(text("shared", "{block}shared_experts.{projection}.weight"));
    names.shared_gate_up = full(text("shared_gate_up", ""));
    names.shared_gate = full(text("shared_gate", ""));
  }
  names.further_experts = text("further_experts", "");
  names.interleaved = object.Find("interleaved").has_value();
  names.down_turned = object.Find("down_turned").has_value();
  if (const auto blocks = object.Find("blocks")) {
    for (const JsonValue e : blocks->elements()) names.blocks.push_back(full(*e.AsString()));
  }
  if (const auto host = object.Find("host")) {
    for (const JsonMember& m : host->members()) {
      names.host.emplace_back(full(*m.key.AsString()), *m.value.AsString());
    }
  }
  if (spec.routing.external()) {
    for (const std::string& name : {names.router, names.selection_bias}) {
      if (!name.empty()) names.host.emplace_back(name, "the host routes");
    }
  }
  return names;
}

void ReadAllNames(const FamilyFields& family, const MoeLayerSpec& spec, HfConfig& config) {
  const auto all = family.family().Find("names"), layers = family.family().Find("layer");
  std::vector<MoeTensorNames> names;
  const auto add = [&](const std::string& layer) {
    for (const JsonValue object : all->elements()) names.push_back(ReadNames(object, layer, spec));
  };
  if (!layers) add(config.tensor_body + "layers.{layer}.");
  if (layers) {
    for (const JsonValue layer : layers->elements()) add(*layer.AsString());
  }
  config.names = names.front();
  config.other_names.assign(names.begin() + 1, names.end());
}

}  // namespace

ExpertActivation ReadActivation(const FamilyFields& family) {
  ExpertActivation a = family.ActivationOf("activation");
  a.gated = !family.family().Flag("ungated");
  a.alpha = static_cast<float>(family.Real("alpha", 1e-6, 1e6, 1));
  a.limit = static_cast<float>(family.Real("limit", 1e-6, 1e6, 0));
  a.up_offset = static_cast<float>(family.Real("up_offset", 0, 1e6, 0));
  return a;
}

void ReadMoePlaces(const FamilyFields& family, HfConfig& config) {
  ConfigFields& fields = family.fields();
  const auto kinds = LayerKinds(family, config);  // whose number may be that of the layers
  const std::string counted = family.Present("layers");
  const bool known = !counted.empty() || !kinds || !family.family().Find("layers");
  config.num_hidden_layers =
      known ? static_cast<int>(fields.Int(counted.empty() ? "num_hidden_layers" : counted.c_str(),
                                          1, kMaxLayerCount))
            : static_cast<int>(std::min<size_t>(kinds->size(), kMaxLayerCount));
  if (!fields.status().ok()) return;
  config.is_moe.assign(config.num_hidden_layers, true);
  const std::string letters = family.Present("layer_letters");
  if (!kinds && !letters.empty()) return PlaceByLetters(letters, family, config);
  PlaceBySteps(family, config);
  const auto checked = LayerKinds(family, config);  // now against their number
  if (!kinds || !checked) return;
  size_t i = 0;
  for (const JsonValue kind : kinds->elements()) {
    config.is_moe[i++] = Contains(family.family().Find("moe_kinds"), kind);
  }
}

void ReadMoeLayers(const FamilyFields& family, HfConfig& config) {
  family.fields().Expect("mlp_bias", false);
  MoeLayerSpec layer;
  layer.num_experts = static_cast<int>(family.Int("experts", 1, kMaxExpertCount, 1));
  layer.hidden = family.Int("expert_hidden", 1, kMaxWidth, config.hidden_size);
  layer.intermediate = family.Int("width", 1, kMaxFfnWidth, 1);
  layer.shared_intermediate = ReadShared(family, layer.intermediate);
  layer.activation = ReadActivation(family);
  layer.expert_bias = family.family().Flag("expert_bias");
  layer.routing = ReadRouting(family, layer.num_experts);
  if (!family.fields().status().ok()) return;
  ReadAllNames(family, layer, config);
  layer.shared_gate = !config.names.shared_gate.empty();
  const bool routed = !layer.routing.external();
  layer.routing.logit_bias = routed && !config.names.router_bias.empty();
  layer.routing.expert_scales = routed && !config.names.expert_scales.empty();
  layer.routing.selection_bias = routed && !config.names.selection_bias.empty();
  const int64_t hashed = family.Int("hash_layers", 0, kMaxLayerCount, 0);
  const auto kinds = LayerKinds(family, config);
  std::vector<bool> hash(config.is_moe.size(), false);
  std::fill_n(hash.begin(), std::min<int64_t>(hashed, config.num_hidden_layers), true);
  size_t place = 0;
  if (kinds) {
    for (const JsonValue kind : kinds->elements()) hash[place++] = kind.Is("hash_moe");
  }
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    if (!config.is_moe[i]) continue;
    MoeLayerSpec& added = config.moe.layers.emplace_back(layer);
    added.model_layer = i;
    if (!hash[i] || !routed) continue;
    added.routing.selection_bias = false;  // the ids choose
    added.routing.hash_vocab = config.vocab_size;
  }
}

}  // namespace moert
