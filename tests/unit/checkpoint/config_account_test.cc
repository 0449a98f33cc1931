// Every field of config.json is read, known to change nothing, or refused by name: all fixtures of
// tests/data/architectures, and what published files have beside sizes and routing.
#include "checkpoint/config_account.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "moert/offline/hf_config.h"
#include "support/architecture_fixture.h"
#include "support/catch.h"

namespace moert {
namespace {

using nlohmann::json;
using test::ArchitectureDir;
using test::ArchitectureNames;

json ReadJson(const std::string& path) {
  std::ifstream in(path);
  REQUIRE(in.good());
  return json::parse(in);
}

/// The object that has the fields of the language model.
json& Text(json& config) { return config.contains("text_config") ? config["text_config"] : config; }

absl::StatusOr<HfConfig> Parse(const json& config) { return ParseHfConfig(config.dump(), "c"); }

const UnusedField* Find(const HfConfig& config, const std::string& key) {
  for (const UnusedField& field : config.unused) {
    if (field.key == key) return &field;
  }
  return nullptr;
}

TEST_CASE("every field of a fixture is read, or known to change nothing") {
  const std::string name = GENERATE(from_range(ArchitectureNames()));
  for (const char* file : {"/config.json", "/config.transformers5.json"}) {
    const std::string path = ArchitectureDir(name) + file;
    if (!std::filesystem::exists(path)) continue;
    INFO(name << file);
    const auto config = Parse(ReadJson(path));
    REQUIRE_OK(config.status());
    for (const UnusedField& field : config->unused) {
      INFO(field.key << ": " << field.why);
      CHECK(field.why.find("not known") == std::string::npos);
    }
  }
}

TEST_CASE("a field that may change what is computed is refused by name") {
  const std::string name = GENERATE(from_range(ArchitectureNames()));
  const json original = ReadJson(ArchitectureDir(name) + "/config.json");
  for (const char* key :
       {"router_temperature", "moe_norm_floor", "expert_scale", "num_expert_group",
        "final_logit_softcapping", "embedding_multiplier", "attention_sink_size", "use_router_bias",
        "topk_scaling", "quantization", "compression_config"}) {
    json config = original;
    if (Text(config).contains(key)) continue;  // this family reads it
    Text(config)[key] = 2;
    const auto parsed = Parse(config);
    INFO(name << ": " << key);
    CHECK(parsed.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(parsed.status().message()), Catch::Contains(std::string(key) + " is 2"));
    Text(config)[key] = nullptr;  // as if it were not there
    REQUIRE_OK(Parse(config).status());
  }
}

TEST_CASE("a field whose name says nothing of computing is listed") {
  json config = ReadJson(ArchitectureDir("mixtral") + "/config.json");
  config["favourite_colour"] = "green";
  const auto parsed = Parse(config);
  REQUIRE_OK(parsed.status());
  const UnusedField* field = Find(*parsed, "favourite_colour");
  REQUIRE(field != nullptr);
  CHECK_THAT(field->why, Catch::Contains("not known"));
}

TEST_CASE("dropout and ids of tokens change nothing, whatever else the name says") {
  json config = ReadJson(ArchitectureDir("mixtral") + "/config.json");
  config["expert_dropout"] = 0.1;
  config["mask_init_id"] = 13;
  const auto parsed = Parse(config);
  REQUIRE_OK(parsed.status());
  for (const auto& [key, why] :
       {std::pair{"expert_dropout", "training"}, {"mask_init_id", "tokens"}}) {
    const UnusedField* field = Find(*parsed, key);
    REQUIRE(field != nullptr);
    CHECK_THAT(field->why, Catch::Contains(why));
  }
  config["router_token_id"] = 13;
  CHECK_THAT(std::string(Parse(config).status().message()),
             Catch::Contains("router_token_id is 13"));
}

TEST_CASE("routing that a family does not have is refused by name") {
  struct Case {
    const char* fixture;
    const char* key;
    json value;
  };
  const Case cases[] = {
      {"ernie4_5_moe", "moe_norm_min", 0.5},
      {"ernie4_5_moe", "moe_gate", "top2_fused"},
      {"ernie4_5_moe", "moe_use_aux_free", false},
      {"deepseek", "scoring_func", "sigmoid"},
      {"deepseek", "routed_scaling_factor", 2.5},
      {"deepseek_v2", "scoring_func", "sigmoid"},
      {"deepseek_v3", "topk_method", "greedy"},
      {"glm4_moe", "scoring_func", "softmax"},
      {"glm4_moe", "topk_method", "greedy"},
      {"gpt_oss", "experts_per_token", 1},
      {"hunyuan_v1_moe", "norm_topk_prob", false},
      {"hunyuan_v1_moe", "group_limited_greedy", true},
      {"hunyuan_v1_moe", "routed_scaling_factor", 2.5},
      {"minimax_m2", "use_routing_bias", false},
      {"minimax_m2", "attn_type_list", json::array({1, 0})},
      {"qwen3_moe", "mlp_bias", true},
      {"qwen3_moe", "layer_types", json::array({"sliding_attention", "full_attention"})},
      {"llama4", "layer_types",
       json::array({"full_attention", "full_attention", "full_attention"})},
  };
  for (const Case& c : cases) {
    json config = ReadJson(ArchitectureDir(c.fixture) + "/config.json");
    Text(config)[c.key] = c.value;
    const auto parsed = Parse(config);
    INFO(c.fixture << ": " << c.key);
    CHECK(parsed.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(parsed.status().message()),
               Catch::Contains(std::string(c.key) + " is "));
  }
}

/// Fields of published files that say nothing of sizes. MiniMax-M2.7 as transformers 5.5 wrote it
/// and as it was published, gpt-oss-120b, GLM-4.5-Air and ERNIE-4.5: copies in public repositories.
TEST_CASE("what published files have beside sizes and routing changes nothing") {
  struct Case {
    const char* fixture;
    json fields;
  };
  const Case cases[] = {
      {"minimax_m2",
       {{"partial_rotary_factor", 0.5},
        {"router_aux_loss_coef", 0.001},
        {"router_jitter_noise", 0.0},
        {"attn_type_list", {1, 1}},
        {"mtp_transformer_layers", 1},
        {"num_mtp_modules", 3},
        {"use_mtp", true},
        {"use_routing_bias", true},
        {"layernorm_mlp_beta", 1.0},
        {"mlp_intermediate_size", 8192},
        {"shared_moe_mode", "sigmoid"},
        {"attention_dropout", 0.0},
        {"auto_map", json::object()},
        {"output_hidden_states", false},
        {"return_dict", true},
        {"chunk_size_feed_forward", 0},
        {"is_encoder_decoder", false},
        {"id2label", json::object()},
        {"label2id", json::object()},
        {"_name_or_path", "MiniMax-M2.7"}}},
      {"gpt_oss",
       {{"experts_per_token", 3},
        {"initial_context_length", 4096},
        {"initializer_range", 0.02},
        {"router_aux_loss_coef", 0.9},
        {"output_router_logits", false},
        {"pad_token_id", 1},
        {"use_cache", true}}},
      {"glm4_moe",
       {{"num_nextn_predict_layers", 1}, {"initializer_range", 0.02}, {"attention_dropout", 0.0}}},
      {"ernie4_5_moe",
       {{"moe_capacity", {64, 64, 64}},
        {"moe_gate", "topk"},
        {"moe_use_aux_free", true},
        {"use_rmsnorm", true},
        {"num_nextn_predict_layers", 1}}},
  };
  for (const Case& c : cases) {
    INFO(c.fixture);
    json config = ReadJson(ArchitectureDir(c.fixture) + "/config.json");
    const auto before = Parse(config);
    config.update(c.fields);
    const auto after = Parse(config);
    REQUIRE_OK(before.status());
    REQUIRE_OK(after.status());
    CHECK(before->moe == after->moe);
    CHECK(before->rope == after->rope);
    CHECK(before->mixers == after->mixers);
    for (const UnusedField& field : after->unused) {
      INFO(field.key << ": " << field.why);
      CHECK(field.why.find("not known") == std::string::npos);
    }
  }
}

TEST_CASE("rope_parameters by type of layer are those of every layer, or refused") {
  json config = ReadJson(ArchitectureDir("gpt_oss") + "/config.transformers5.json");
  const auto flat = Parse(config);
  REQUIRE_OK(flat.status());
  CHECK(flat->rope.kind == RopeKind::kYarn);
  const json yarn = config["rope_parameters"];
  config["rope_parameters"] = {{"full_attention", yarn}, {"sliding_attention", yarn}};
  const auto nested = Parse(config);
  REQUIRE_OK(nested.status());
  CHECK(nested->rope == flat->rope);

  json other = yarn;
  other["factor"] = 2.0 * yarn["factor"].get<double>();
  config["rope_parameters"] = {{"full_attention", yarn}, {"sliding_attention", other}};
  const auto refused = Parse(config);
  CHECK(refused.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(refused.status().message()),
             Catch::Contains("those of full_attention and sliding_attention differ"));

  // A type that no layer has decides nothing.
  config["rope_parameters"]["sliding_attention"] = yarn;
  config["rope_parameters"]["chunked_attention"] = other;
  const auto without = Parse(config);
  REQUIRE_OK(without.status());
  CHECK(without->rope == flat->rope);
}

TEST_CASE("a field of rope_parameters that is not read is refused by name") {
  json config = ReadJson(ArchitectureDir("gpt_oss") + "/config.transformers5.json");
  config["rope_parameters"]["llama_4_scaling_beta"] = 0.1;
  const auto parsed = Parse(config);
  CHECK_THAT(std::string(parsed.status().message()),
             Catch::Contains("llama_4_scaling_beta is 0.1"));
}

TEST_CASE("quantization_config says nothing unread of how weights are stored") {
  const json original = ReadJson(SourceDir() + "/tests/data/quantized/gptq_g128/config.json");
  struct Case {
    const char* key;
    json value;
  };
  const Case refused[] = {{"pack_dtype", "int8"},
                          {"transform_config", {{"config_groups", {{"R1", 1}}}}},
                          {"hadamard", true}};
  for (const Case& c : refused) {
    json config = original;
    config["quantization_config"][c.key] = c.value;
    const auto parsed = Parse(config);
    INFO(c.key);
    CHECK(parsed.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(parsed.status().message()), Catch::Contains(c.key));
  }
  json config = original;
  config["quantization_config"].update({{"true_sequential", true},
                                        {"damp_percent", 0.01},
                                        {"static_groups", false},
                                        {"dynamic", {{"-:.*self_attn.*", json::object()}}},
                                        {"pack_dtype", "int32"},
                                        {"meta", {{"quantizer", "gptqmodel"}}}});
  const auto parsed = Parse(config);
  REQUIRE_OK(parsed.status());
  CHECK(Find(*parsed, "quantization_config.damp_percent") != nullptr);
}

}  // namespace
}  // namespace moert
