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
       "legal is one with an object full_attention"},
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

}  // namespace
}  // namespace moert
