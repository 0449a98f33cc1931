// Configurations of models whose attention sees blocks that an indexer chooses.
#include <nlohmann/json.hpp>
#include <string>

#include "moert/offline/hf_config.h"
#include "support/architecture_fixture.h"
#include "support/catch.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using nlohmann::json;

// The text half alone, as published and as transformers writes it.
json Published() {
  return json::parse(
      test::ReadFile(test::ArchitectureDir("minimax_m3_vl") + "/config.json"))["text_config"];
}
json Written() {
  return json::parse(
      test::ReadFile(test::ArchitectureDir("minimax_m3_vl") + "/config.transformers5.json"));
}

TEST_CASE("minimax_m3_vl: sizes of the indexer, layers without one, clamped dense blocks") {
  for (const json& j : {Published(), Written()}) {
    const auto c = ParseHfConfig(j.dump(), "c");
    REQUIRE_OK(c.status());
    CHECK_FALSE(c->experts_only);
    IndexerConfig indexer;
    indexer.heads = 2;
    indexer.head_dim = 24;
    indexer.top_k = indexer.block_size = 3;
    indexer.local_blocks = 1;
    CHECK(c->indexer == indexer);
    REQUIRE(c->mixers.size() == 3);
    for (int i = 0; i < 3; ++i) CHECK(c->mixers[i].ignores_index == (i == 0));
    CHECK(c->is_moe == std::vector<bool>{false, true, true});
    CHECK(c->norm == NormKind::kRmsOffset);
    CHECK(c->qk_norm == QkNorm::kPerHead);
    CHECK(c->rope.dim == 16);
    CHECK(c->dense_intermediate == 48);
    CHECK(c->activation.alpha == 1.702f);
    CHECK(c->activation.limit == 2.0f);
    CHECK(c->activation.up_offset == 1.0f);
    CHECK(c->activation == c->moe.layers[0].activation);
    CHECK(c->moe.layers[0].shared_intermediate == 16);
  }
}

TEST_CASE("minimax_m3_vl: layers that choose nothing need no indexer") {
  for (json j : {Published(), Written()}) {
    if (j.contains("layer_types")) {
      j["layer_types"] = json(3, "full_attention");
      j["index_n_heads"] = 7;
    } else {
      j.erase("sparse_attention_config");
    }
    const auto c = ParseHfConfig(j.dump(), "c");
    REQUIRE_OK(c.status());
    CHECK(c->indexer == IndexerConfig());
    CHECK(c->mixers == std::vector<MixerConfig>(3));
  }
}

TEST_CASE("minimax_m3_vl: what would change the numbers is refused by name") {
  struct Case {
    const char* key;
    json value;
    const char* message;
  };
  const Case written[] = {
      {"layer_types", json(2, "full_attention"), "legal is a list of 3 names, full_attention or"},
      {"layer_types", json(3, "sliding_attention"), "full_attention or minimax_m3_sparse"},
      {"index_n_heads", 4, "index_n_heads is 4, legal is"},
      {"index_head_dim", 14, "index_head_dim is 14, legal is what RoPE rotates (16 channels)"},
      {"index_block_size", 0, "index_block_size is 0, legal is an integer from 1"},
      {"index_topk_blocks", 0, "index_topk_blocks is 0, legal is an integer from 1"},
      {"index_local_blocks", 4, "index_local_blocks is 4, legal is an integer from 0 to 3"},
      {"index_pool", "mean", "index_pool"},
      {"use_gemma_norm", false, "use_gemma_norm is false, legal is true"},
      {"hidden_act", "gelu", "hidden_act"},
      {"n_shared_experts", 2, "n_shared_experts is 2, legal is 1"},
  };
  for (const Case& k : written) {
    INFO(k.key << " " << k.value.dump());
    json j = Written();
    j[k.key] = k.value;
    CHECK_THAT(std::string(ParseHfConfig(j.dump(), "c").status().message()),
               Catch::Contains(k.message));
  }
  const Case published[] = {
      {"sparse_attention_freq", {0, 1}, "legal is a list of 3 numbers, 1 where a layer chooses"},
      {"sparse_disable_index_value", {1, 0, 1}, "1 where sparse_attention_freq has a 1"},
      {"sparse_num_index_heads", 1, "sparse_num_index_heads is 1, legal is"},
      {"sparse_index_dim", 8, "sparse_index_dim is 8, legal is what RoPE rotates"},
      {"sparse_init_block", 1, "sparse_init_block is 1, legal is 0"},
      {"sparse_score_type", "sum", "sparse_score_type is \"sum\", legal is"},
      {"use_sparse_attention", false, "use_sparse_attention is false, legal is true"},
  };
  for (const Case& k : published) {
    INFO(k.key << " " << k.value.dump());
    json j = Published();
    j["sparse_attention_config"][k.key] = k.value;
    CHECK_THAT(std::string(ParseHfConfig(j.dump(), "c").status().message()),
               Catch::Contains(k.message));
  }
  json j = Published();
  j["index_block_size"] = 4;  // beside sparse_block_size
  CHECK_THAT(std::string(ParseHfConfig(j.dump(), "c").status().message()),
             Catch::Contains("index_block_size is 4, legal is"));
}

}  // namespace
}  // namespace moert
