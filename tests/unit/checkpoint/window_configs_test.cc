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

}  // namespace
}  // namespace moert
