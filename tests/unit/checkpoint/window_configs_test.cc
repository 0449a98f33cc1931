// Configurations of models whose layers with windows differ from the others in more than the
// window.
#include <nlohmann/json.hpp>

#include "moert/offline/hf_config.h"
#include "support/architecture_fixture.h"
#include "support/catch.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using nlohmann::json;

json Fixture(const std::string& name) {
  return json::parse(test::ReadFile(test::ArchitectureDir(name) + "/config.json"));
}

HfConfig Parse(const json& j) {
  const auto config = ParseHfConfig(j.dump(), "c");
  REQUIRE_OK(config.status());
  return *config;
}

std::string ErrorOf(const json& j) {
  return std::string(ParseHfConfig(j.dump(), "c").status().message());
}

TEST_CASE("exaone_moe: layers without a window do not rotate") {
  json j = Fixture("exaone_moe");
  const MixerConfig window{MixerKind::kWindow, 8}, full{MixerKind::kFull, 0, false};
  CHECK(Parse(j).mixers == std::vector<MixerConfig>{window, full, window});
  CHECK(Parse(j).is_moe == std::vector<bool>{false, true, true});
  j.erase("layer_types");
  CHECK_THAT(ErrorOf(j), Catch::Contains("sliding_window_pattern is \"LGL\", legal is"));
  j["sliding_window_pattern"] = 3;
  CHECK(Parse(j).mixers == std::vector<MixerConfig>{window, window, full});
  j["sliding_window"] = nullptr;
  CHECK(Parse(j).mixers == std::vector<MixerConfig>(3));
  j["is_moe_layer"] = {true, 1, false};
  CHECK_THAT(ErrorOf(j), Catch::Contains("is_moe_layer is [true,1,false], legal is"));
}

TEST_CASE("mimo_v2_flash: windows have heads, RoPE and sinks of their own") {
  json j = Fixture("mimo_v2_flash");
  const HfConfig c = Parse(j);
  CHECK(c.mixers[0] == MixerConfig{});
  CHECK(c.mixers[1] == MixerConfig{MixerKind::kWindow, 8});  // its own position is not counted
  CHECK(c.KvHeads(0) == 1);
  CHECK(c.KvHeads(1) == 2);
  CHECK(c.HeadDim(1) == 48);
  CHECK(c.ValueDim(1) == 32);
  CHECK_FALSE(c.HasSinks(0));
  CHECK(c.HasSinks(1));
  CHECK(c.sinks_name == "attention_sink_bias");
  CHECK(c.Rope(0).theta == 5e6);
  CHECK(c.Rope(1).theta == 1e4);
  CHECK(c.Rope(1).dim == 16);
  CHECK(c.value_scale == 0.707);
  CHECK(c.norm_eps == 1e-5);
}

TEST_CASE("mimo_v2_flash: what would change the numbers is refused by name") {
  struct Case {
    const char* field;
    json value;
    const char* message;
  };
  const Case cases[] = {
      {"attention_value_scale", nullptr, "attention_value_scale is missing"},
      {"swa_head_dim", 64, "swa_head_dim is 64, legal is an integer from 48 to 48"},
      {"swa_num_key_value_heads", 3, "swa_num_key_value_heads is 3, legal is what gives"},
      {"add_full_attention_sink_bias", true,
       "add_full_attention_sink_bias is true, legal is false"},
      {"hybrid_layer_pattern", {0, 1}, "legal is a list of 3 numbers"},
      {"rope_parameters",
       {{"rope_type", "default"}, {"rope_theta", 1e6}},
       "legal is one with an object sliding_attention"},
      {"rope_parameters",
       {{"full_attention", {{"rope_theta", 1e6}}}},
       "legal is one with an object sliding_attention"},
  };
  for (const Case& k : cases) {
    INFO(k.field);
    json j = Fixture("mimo_v2_flash");
    j[k.field] = k.value;
    CHECK_THAT(ErrorOf(j), Catch::Contains(k.message));
  }
}

TEST_CASE("gemma4: layers without a window have heads of their own, and values that are keys") {
  json j = Fixture("gemma4");
  const HfConfig c = Parse(j);
  CHECK(c.mixers[1] == MixerConfig{MixerKind::kWindow, 8});
  CHECK(c.mixers[2] == MixerConfig{});
  CHECK(c.KvHeads(1) == 2);
  CHECK(c.KvHeads(2) == 1);
  CHECK(c.HeadDim(1) == 16);
  CHECK(c.HeadDim(2) == 32);
  CHECK(c.HasValues(1));
  CHECK_FALSE(c.HasValues(2));
  CHECK(c.Rope(1).kind == RopeKind::kDefault);
  CHECK(c.Rope(2).kind == RopeKind::kProportional);
  CHECK(c.Rope(2).dim == 32);
  CHECK(c.Rope(2).turning == 4);
  CHECK(c.attention_scale == 1);
  CHECK(c.embedding_scale == 8);
  CHECK(c.logit_cap == 5);
  CHECK(c.dense_intermediate == 48);
  CHECK(c.moe.layers[0].routing.kind == RoutingKind::kExternal);
  j["text_config"]["attention_k_eq_v"] = false;
  CHECK(Parse(j).KvHeads(2) == 2);
  CHECK(Parse(j).HasValues(2));
}

TEST_CASE("gemma4: what would change the numbers is refused by name") {
  struct Case {
    const char* field;
    json value;
    const char* message;
  };
  const json heads = {{"head_dim", 32}, {"num_key_value_heads", 1}};
  const Case cases[] = {
      {"rope_parameters", nullptr, "rope_parameters is missing, legal is an object with one for"},
      {"num_global_key_value_heads", 3, "legal is a multiple of the key heads of layers without"},
      {"per_layer_config", {{"1", heads}}, "legal are objects of layers without a window"},
      {"per_layer_config", json::object(), "legal is an object for each layer without a window"},
      {"per_layer_config", {{"2", {{"window", 1}}}}, "window is 1, a field that is not read"},
  };
  for (const Case& k : cases) {
    INFO(k.field);
    json j = Fixture("gemma4");
    j["text_config"][k.field] = k.value;
    CHECK_THAT(ErrorOf(j), Catch::Contains(k.message));
  }
  json j = Fixture("gemma4");
  CHECK_FALSE(Parse(j).experts_only);
  j["text_config"]["hidden_size_per_layer_input"] = 16;  // of this variant experts alone are read
  CHECK(Parse(j).experts_only);
  j = Fixture("gemma4");
  j["text_config"]["num_kv_shared_layers"] = 1;
  CHECK(Parse(j).experts_only);
  j = Fixture("gemma4");
  j["text_config"]["per_layer_config"] = {{"2", heads}};
  CHECK(Parse(j).HeadDim(2) == 32);
}

}  // namespace
}  // namespace moert
