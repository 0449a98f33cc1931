// Configurations of models whose attention sees entries that stand for several positions.
#include <nlohmann/json.hpp>
#include <string>

#include "moert/offline/hf_config.h"
#include "support/architecture_fixture.h"
#include "support/catch.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using nlohmann::json;

// As published and as transformers writes it.
json Read(const char* file) {
  return json::parse(test::ReadFile(test::ArchitectureDir("deepseek_v4") + "/" + file));
}

TEST_CASE("deepseek_v4: what each layer sees, two RoPEs, streams, and layers that ids route") {
  for (const char* file : {"config.json", "config.transformers5.json"}) {
    INFO(file);
    const auto c = ParseHfConfig(Read(file).dump(), "c");
    REQUIRE_OK(c.status());
    CHECK_FALSE(c->experts_only);
    CHECK(c->compressed == CompressedAttentionConfig{24, 8, 2, 16});
    CHECK(c->indexer == IndexerConfig{12, 16, 3, true});
    CHECK(c->hyper == HyperConnectionConfig{3, 4, 1e-6});
    MixerConfig window{MixerKind::kWindow, 5}, chosen{MixerKind::kCompressed, 5}, all = chosen;
    chosen.rate = 4;
    all.rate = 8;
    window.ignores_index = all.ignores_index = true;
    CHECK(c->mixers == std::vector<MixerConfig>{window, chosen, all});
    CHECK(c->Rope(0).kind == RopeKind::kDefault);
    CHECK(c->Rope(0).theta == 10000);
    CHECK(c->Rope(1).kind == RopeKind::kYarn);
    CHECK(c->Rope(1).theta == 160000);
    CHECK(c->Rope(1).attention_factor == 1);
    CHECK(c->Rope(1) == c->Rope(2));
    for (int layer = 0; layer < 3; ++layer) {
      CHECK(c->Rope(layer).dim == 8);
      CHECK(c->Rope(layer).interleaved);
      CHECK(c->moe.layers[layer].routing.hash_vocab == (layer == 0 ? 128 : 0));
      CHECK(c->moe.layers[layer].routing.selection_bias == (layer != 0));
      CHECK(c->moe.layers[layer].activation.limit == 1.5f);
    }
    CHECK(c->names.Expert(1, 2, Projection::kUp) == "layers.1.ffn.experts.2.w3.weight");
  }
}

TEST_CASE("deepseek_v4: without lists of layers, those of transformers' defaults") {
  json j = Read("config.json");
  for (const char* key : {"compress_ratios", "compress_rates", "num_hash_layers"}) j.erase(key);
  j["num_hidden_layers"] = 6;
  const auto c = ParseHfConfig(j.dump(), "c");
  REQUIRE_OK(c.status());
  for (int i = 0; i < 6; ++i) {
    INFO(i);
    const bool chooses = i == 3 || i == 5;
    CHECK(c->mixers[i].kind == MixerKind::kCompressed);
    CHECK(c->mixers[i].rate == (chooses ? 4 : 128));
    CHECK(c->mixers[i].ignores_index == !chooses);
    CHECK((c->moe.layers[i].routing.hash_vocab > 0) == (i < 3));
  }
}

TEST_CASE("deepseek_v4: what would change the numbers is refused by name") {
  struct Case {
    const char* file;
    const char* key;
    json value;
    const char* message;
  };
  constexpr char kPublished[] = "config.json", kWritten[] = "config.transformers5.json";
  const Case cases[] = {
      {kPublished, "compress_ratios", {0, 4}, "legal is a list of 3 numbers or more, 0, 4 or 128"},
      {kPublished, "compress_ratios", {0, 2, 128}, "legal is a list of 3 numbers or more"},
      {kPublished, "compress_rates", {{"sparse", 4}}, "legal is an object with compressed_sparse"},
      {kPublished, "compress_rates", {{"compressed_sparse_attention", 0}}, "legal is an integer"},
      {kPublished, "compress_rate_csa", 0, "compress_rate_csa is 0, legal is an integer from 1"},
      {kPublished, "qk_rope_head_dim", 7, "an even number of at least 2 of head_dim (32)"},
      {kPublished, "o_groups", 3, "legal is a divisor of num_attention_heads (4)"},
      {kPublished, "index_head_dim", 6, "index_head_dim is 6, legal is an integer from 8"},
      {kPublished, "index_topk", 0, "index_topk is 0"},
      {kPublished, "sliding_window", 0, "sliding_window is 0"},
      {kPublished, "hc_mult", 0, "hc_mult is 0"},
      {kPublished, "hc_sinkhorn_iters", 0, "hc_sinkhorn_iters is 0"},
      {kPublished, "num_key_value_heads", 2, "num_key_value_heads is 2, legal is 1"},
      {kPublished, "attention_bias", true, "attention_bias"},
      {kPublished, "compress_norm", true, "compress_norm"},
      {kPublished, "expert_dtype", "int4", "expert_dtype is \"int4\", legal are fp4, fp8"},
      {kWritten, "layer_types", json(3, "full_attention"), "legal is a list of 3 names"},
      {kWritten, "layer_types", json(2, "sliding_attention"), "legal is a list of 3 names"},
      {kWritten, "partial_rotary_factor", 0.5, "qk_rope_head_dim is 8, legal is"},
      {kWritten, "hc_eps", 2, "hc_eps is 2"},
  };
  for (const Case& k : cases) {
    INFO(k.key << " " << k.value.dump());
    json j = Read(k.file);
    j[k.key] = k.value;
    const auto parsed = ParseHfConfig(j.dump(), "c");
    CHECK_THAT(std::string(parsed.status().message()), Catch::Contains(k.message));
  }
}

TEST_CASE("deepseek_v4: RoPE that rotates another part of a head than the field says is refused") {
  json j = Read("config.transformers5.json");
  j["rope_parameters"]["main"]["partial_rotary_factor"] = 0.5;
  CHECK_THAT(std::string(ParseHfConfig(j.dump(), "c").status().message()),
             Catch::Contains("legal is the same part of a head everywhere"));
}

}  // namespace
}  // namespace moert
