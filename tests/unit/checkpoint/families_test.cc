// Descriptions of families: each is well formed, and each configuration of tests/data/families is
// read to what the model that transformers makes of it has, or refused by name. configs.json has
// the defaults of transformers' configuration classes, published.json facts of published files.
#include <nlohmann/json.hpp>
#include <set>

#include "base/json.h"
#include "checkpoint/family.h"
#include "moert/offline/hf_config.h"
#include "moert/source/expert_source.h"
#include "support/catch.h"
#include "support/changed_model.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using nlohmann::json;

std::string TextOf(const char* file) {
  return test::ReadFile(SourceDir() + "/tests/data/families/" + file);
}

const json& Cases() {
  static const json cases = json::parse(TextOf("configs.json"));
  return cases;
}

// Those of docs/internals/families.md, and those that only a decoder's description has.
const std::set<std::string> kKeys = {"activation",
                                     "alpha",
                                     "also_in",
                                     "at_most",
                                     "attention_gate",
                                     "attention_scale",
                                     "attention_sinks",
                                     "body",
                                     "clamped_dense",
                                     "clip_qkv",
                                     "decoder",
                                     "decoder_if",
                                     "dense_block",
                                     "dense_layers",
                                     "dense_width",
                                     "down_turned",
                                     "embedding_name",
                                     "expect",
                                     "expert_bias",
                                     "expert_hidden",
                                     "experts",
                                     "first_moe",
                                     "fp4_experts_if",
                                     "full_every",
                                     "full_head_dim",
                                     "full_kv_heads",
                                     "full_kv_heads_if",
                                     "groups",
                                     "groups_if",
                                     "hash_layers",
                                     "head_name",
                                     "hidden",
                                     "hyper_connections",
                                     "index_interleaved",
                                     "last_moe",
                                     "last_sees_all",
                                     "latent_attention",
                                     "layer",
                                     "layer_kinds",
                                     "layer_letters",
                                     "layers",
                                     "library_routes_if",
                                     "like",
                                     "limit",
                                     "lm_head_bias",
                                     "logit_cap",
                                     "mixer_norm_name",
                                     "mixers",
                                     "mlp_norm_name",
                                     "model_types",
                                     "moe_flags",
                                     "moe_kinds",
                                     "moe_layers",
                                     "moe_letter",
                                     "moe_offset",
                                     "moe_step",
                                     "names",
                                     "nested_body",
                                     "nested_prefix",
                                     "norm",
                                     "norm_eps",
                                     "only_windows_rotate",
                                     "output_bias",
                                     "partial_rotary",
                                     "qk_norm",
                                     "qk_norm_if",
                                     "qkv_bias",
                                     "refused",
                                     "renormalize",
                                     "rope_by_kind",
                                     "rope_interleaved",
                                     "rope_theta",
                                     "routing",
                                     "scaled_embedding",
                                     "scaling",
                                     "separate_projections",
                                     "shared_experts",
                                     "shared_if",
                                     "shared_unit",
                                     "shared_width",
                                     "side_experts",
                                     "sinks_name",
                                     "sparsemixer_eps",
                                     "temperature",
                                     "tied",
                                     "top_groups",
                                     "top_k",
                                     "ungated",
                                     "unused",
                                     "up_offset",
                                     "value_dim",
                                     "value_norm",
                                     "value_scale",
                                     "values_are_keys",
                                     "weight_input",
                                     "width",
                                     "window_before",
                                     "window_flags",
                                     "window_kv_heads",
                                     "window_kv_times",
                                     "window_needs_flag",
                                     "window_rope_theta",
                                     "window_sinks"};

TEST_CASE("descriptions are well formed") {
  std::set<std::string> types;
  for (const FamilyText& text : FamilyTexts()) {
    INFO(text.name);
    const auto family = ModelFamily::Load(text.name);
    REQUIRE_OK(family.status());
    for (const std::string& key : family->Keys()) {
      INFO(key);
      CHECK(kKeys.count(key) == 1);
    }
    if (std::string(text.name) == "common") continue;
    const auto own = family->Find("model_types");
    REQUIRE(own.has_value());
    for (const JsonMember& type : own->members()) {
      CHECK(types.insert(*type.key.AsString()).second);  // no two families have it
    }
  }
  for (const std::string& type : SupportedArchitectures()) CHECK(types.count(type) == 1);
}

struct Counts {
  int read = 0, refused = 0;
};

void CheckNumbers(const HfConfig& config, JsonValue model) {
  CHECK(config.moe.num_layers() == model.Find("layers")->AsInt());
  CHECK(config.moe.layers[0].num_experts == model.Find("experts")->AsInt());
  int64_t weights = 0;
  for (const MoeLayerSpec& layer : config.moe.layers) {
    weights +=
        (layer.activation.gated ? 3 : 2) * layer.num_experts * layer.hidden * layer.intermediate;
  }
  CHECK(weights == model.Find("weights")->AsInt());
}

// `published`: each says where it is from, and no field of it is unknown.
Counts CheckAll(const char* file, bool published) {
  const auto cases = JsonDocument::Parse(TextOf(file), file, {.not_finite = true});
  REQUIRE_OK(cases.status());
  Counts counts;
  for (const JsonMember& model : cases->root().members()) {
    const std::string name = *model.key.AsString();
    INFO(name);
    CHECK(model.value.Find("source").has_value() == published);
    const auto config = ParseHfConfig(model.value.Find("config")->text(), name);
    if (const auto refused = model.value.Find("refused")) {
      ++counts.refused;
      CHECK_THAT(std::string(config.status().message()), Catch::Contains(*refused->AsString()));
      continue;
    }
    if (!config.ok()) {
      FAIL_CHECK(std::string(config.status().message()));
      continue;
    }
    ++counts.read;
    CheckNumbers(*config, model.value);
    for (size_t i = 0; published && i < config->unused.size(); ++i) {
      INFO(config->unused[i].key << ": " << config->unused[i].why);
      CHECK(config->unused[i].why.find("not known") == std::string::npos);
    }
  }
  return counts;
}

TEST_CASE("default configurations of transformers, and a hundred published ones") {
  const Counts defaults = CheckAll("configs.json", false);
  const Counts published = CheckAll("published.json", true);
  CHECK(defaults.read >= 55);
  CHECK(defaults.refused >= 5);
  CHECK(published.read >= 90);
  CHECK(published.read + published.refused >= 100);
}

// The object of a configuration that describes the experts.
json& Inner(json& config) {
  for (const char* key : {"thinker_config", "text_config"}) {
    if (config.contains(key) && config[key].contains("hidden_size")) return config[key];
    if (config.contains(key) && config[key].contains("text_config")) {
      return config[key]["text_config"];
    }
  }
  return config;
}

TEST_CASE("a field of the experts that no description knows is refused by name") {
  for (const auto& [name, model] : Cases().items()) {
    if (model.contains("refused")) continue;
    INFO(name);
    json config = model["config"];
    Inner(config)["moe_router_noise_kind"] = "gumbel";
    const auto parsed = ParseHfConfig(config.dump(), name);
    CHECK_THAT(std::string(parsed.status().message()), Catch::Contains("moe_router_noise_kind"));
  }
}

TEST_CASE("values that no expert can have are refused by name") {
  const json hostile = {-1, 0, 1e300, "8", json::array(), json::object(), true, int64_t{1} << 62};
  for (const auto& [name, model] : Cases().items()) {
    json config = model["config"];
    for (const auto& [key, value] : Inner(config).items()) {
      for (const json& bad : hostile) {
        json damaged = config;
        Inner(damaged)[key] = bad;
        const auto parsed = ParseHfConfig(damaged.dump(), name);
        if (parsed.ok()) CHECK(parsed->moe.Validate().ok());
        if (!parsed.ok()) CHECK(parsed.status().code() != absl::StatusCode::kInternal);
      }
    }
  }
}

// Not compared: fields whose absence the checkpoint's tensors show (shared experts, layers without
// experts, shapes of heads), topk_group (files that have n_group have it), and those whose absence
// this reader takes for none, where transformers has a default of its own.
const std::set<std::string> kNotCompared = {
    "num_dense_layers",
    "first_k_dense_replace",
    "mlp_layer_types",
    "mlp_only_layers",
    "num_shared_experts",
    "n_shared_experts",
    "num_key_value_heads",
    "moe_num_shared_experts",
    "head_dim",
    "q_lora_rank",
    "rotary_dim",
    "topk_group",
    "tie_word_embeddings",
    "layer_types",
    "rope_parameters",
    "attention_chunk_size",
    "expert_selection_fn",  // cohere2_moe: a host's routing, which the model says itself
};

// A file without a field is of a model that has the class's default. deepseek_v3's own description
// is that of files that have all of it (the ones published do).
TEST_CASE("a field left out has transformers' default, or is missed by name") {
  int read = 0;
  for (const auto& [name, model] : Cases().items()) {
    const auto whole = ParseHfConfig(model["config"].dump(), name);
    if (!whole.ok() || name == "deepseek_v3") continue;
    json copy = model["config"];
    const json fields = Inner(copy);
    for (const auto& [key, value] : fields.items()) {
      if (key == "model_type" || value.is_null() || kNotCompared.contains(key)) continue;
      INFO(name << " without " << key);
      json config = model["config"];
      Inner(config).erase(key);
      const auto parsed = ParseHfConfig(config.dump(), name);
      if (!parsed.ok()) continue;
      ++read;
      CHECK(parsed->moe.layers == whole->moe.layers);
      CHECK(parsed->mixers == whole->mixers);
      CHECK(parsed->rope == whole->rope);
      CHECK(parsed->norm_eps == whole->norm_eps);
    }
  }
  CHECK(read >= 600);
}

TEST_CASE("groups and shared experts that only published files name are refused by name") {
  for (const auto& [family, key] : {std::pair{"afmoe", "num_expert_groups"},
                                    {"afmoe", "num_limited_groups"},
                                    {"minimax", "shared_intermediate_size"}}) {
    json config = Cases()[family]["config"];
    config[key] = 2;
    CHECK_THAT(std::string(ParseHfConfig(config.dump(), "c").status().message()),
               Catch::Contains(std::string(key) + " is 2"));
  }
}

// Fixtures have the tensors of these model types under the names of their published code.
TEST_CASE("model types that transformers lacks open as their published code computes") {
  struct Case {
    const char* fixture;
    json changes;  // of its config.json
    RoutingSpec routing;
    int64_t shared;
  };
  const Case cases[] = {
      {"deepseek",
       {{"model_type", "bailing_moe"},
        {"n_routed_experts", nullptr},
        {"n_shared_experts", nullptr},
        {"norm_topk_prob", nullptr},
        {"num_experts", 8},
        {"num_shared_experts", 2}},
       {.kind = RoutingKind::kSoftmaxTopK, .top_k = 3, .renormalize = true},
       32},
      {"mixtral",
       {{"model_type", "minimax_m1"}, {"shared_intermediate_size", 0}},
       {.kind = RoutingKind::kSoftmaxTopK, .top_k = 2, .renormalize = true},
       0},
      {"hunyuan_v1_moe",
       {{"model_type", "hunyuan"}},
       {.kind = RoutingKind::kSoftmaxTopK, .top_k = 3, .renormalize = true},
       16},
  };
  for (const Case& c : cases) {
    INFO(c.fixture);
    const test::TempDir dir;
    json config = test::ConfigFieldsOf(c.fixture);
    config.merge_patch(c.changes);
    test::CopyModelWith(c.fixture, config, dir);
    const auto source = OpenModel(dir.path(), {});
    REQUIRE_OK(source.status());
    const MoeLayerSpec& layer = (*source)->model().layers.back();
    CHECK(layer.routing == c.routing);
    CHECK(layer.shared_intermediate == c.shared);
  }
}

TEST_CASE("the shared expert and the routing where the host has them") {
  json nemotron = Cases()["nemotron_h"]["config"];
  nemotron["moe_latent_size"] = 256;
  const auto config = ParseHfConfig(nemotron.dump(), "c");
  REQUIRE_OK(config.status());
  const MoeLayerSpec& layer = config->moe.layers[0];
  CHECK(layer.hidden == 256);
  CHECK(layer.shared_intermediate == 0);
  CHECK(layer.routing.kind == RoutingKind::kExternal);
  CHECK(config->experts_only);
}

}  // namespace
}  // namespace moert
