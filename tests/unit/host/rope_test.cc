// Frequencies of rotary position embeddings against those of the reference library.
#include "host/blocks/rope.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "moert/offline/hf_config.h"
#include "support/architecture_fixture.h"
#include "support/catch.h"
#include "support/paths.h"

namespace moert {
namespace {

using test::ArchitectureDir;

TEST_CASE("frequencies of every kind of RoPE scaling are the reference library's") {
  std::ifstream in(SourceDir() + "/tests/data/architectures/rope.json");
  const nlohmann::json cases = nlohmann::json::parse(in);
  REQUIRE(cases.size() == 6);
  nlohmann::json config;
  std::ifstream(ArchitectureDir("qwen3_moe") + "/config.json") >> config;
  for (const auto& c : cases) {
    INFO(c["name"]);
    config["rope_scaling"] = c["rope_scaling"];
    config["rope_theta"] = c["theta"];
    config["head_dim"] = c["head_dim"];
    config["max_position_embeddings"] = c["max_position_embeddings"];
    const auto parsed = ParseHfConfig(config.dump(), "c");
    REQUIRE_OK(parsed.status());
    const host::Rope rope(parsed->rope);
    CHECK(rope.attention_factor(0) == Approx(c["attention_factor"].get<float>()).epsilon(1e-6));
    const std::vector<float> expected = c["inverse_frequencies"];
    REQUIRE(rope.inverse_frequencies(0).size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      INFO(i);
      CHECK(rope.inverse_frequencies(0)[i] == Approx(expected[i]).epsilon(2e-6));
    }
  }
}

}  // namespace
}  // namespace moert
