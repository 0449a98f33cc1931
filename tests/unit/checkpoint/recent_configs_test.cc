// The readers' results for configurations that publishers of recent families wrote (fields that say
// nothing of sizes, routing or attention are left out), and for illegal ones.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "moert/offline/hf_config.h"
#include "tests/support/catch.h"
#include "tests/support/deepseek_configs.h"

namespace moert {
namespace {

using nlohmann::json;
using test::DeepSeekV2Lite;
using test::DeepSeekV3;

// Compared with a table of these sizes and with a transcription of Qwen3-Coder-Next's config.json
// (the same network with another rope_theta), both in public repositories.
json Qwen3Next() {
  return {{"model_type", "qwen3_next"},
          {"vocab_size", 151936},
          {"hidden_size", 2048},
          {"num_hidden_layers", 48},
          {"num_attention_heads", 16},
          {"num_key_value_heads", 2},
          {"head_dim", 256},
          {"partial_rotary_factor", 0.25},
          {"rope_theta", 10000000},
          {"rope_scaling", nullptr},
          {"max_position_embeddings", 262144},
          {"full_attention_interval", 4},
          {"linear_conv_kernel_dim", 4},
          {"linear_key_head_dim", 128},
          {"linear_num_key_heads", 16},
          {"linear_num_value_heads", 32},
          {"linear_value_head_dim", 128},
          {"intermediate_size", 5120},
          {"moe_intermediate_size", 512},
          {"shared_expert_intermediate_size", 512},
          {"num_experts", 512},
          {"num_experts_per_tok", 10},
          {"norm_topk_prob", true},
          {"decoder_sparse_step", 1},
          {"mlp_only_layers", json::array()}};
}

// The Instruct form, compared with copies of its text_config in public repositories. Its two
// frequency factors are the same; the base form has 8, 4 and 1.
json Scout() {
  json text = {{"model_type", "llama4_text"},
               {"vocab_size", 202048},
               {"hidden_size", 5120},
               {"num_hidden_layers", 48},
               {"num_attention_heads", 40},
               {"num_key_value_heads", 8},
               {"head_dim", 128},
               {"intermediate_size", 8192},
               {"intermediate_size_mlp", 16384},
               {"num_local_experts", 16},
               {"num_experts_per_tok", 1},
               {"interleave_moe_layer_step", 1},
               {"attention_chunk_size", 8192},
               {"attn_temperature_tuning", 4},
               {"floor_scale", 8192},
               {"attn_scale", 0.1},
               {"no_rope_layers", json::array()},
               {"use_qk_norm", true},
               {"max_position_embeddings", 10485760},
               {"rope_theta", 500000.0},
               {"rope_scaling",
                {{"rope_type", "llama3"},
                 {"factor", 16.0},
                 {"high_freq_factor", 1.0},
                 {"low_freq_factor", 1.0},
                 {"original_max_position_embeddings", 8192}}}};
  return {{"model_type", "llama4"}, {"text_config", text}};
}

HfConfig Parse(const json& j) {
  auto config = ParseHfConfig(j.dump(), "c");
  REQUIRE_OK(config.status());
  return *std::move(config);
}

double BillionsInExperts(const HfConfig& c) {
  const MoeLayerSpec& layer = c.moe.layers[0];
  return 3e-9 * static_cast<double>(c.moe.total_experts()) *
         static_cast<double>(layer.hidden * layer.intermediate);
}

TEST_CASE("DeepSeek-V2-Lite") {
  const HfConfig c = Parse(DeepSeekV2Lite());
  CHECK(BillionsInExperts(c) == Approx(14.395).epsilon(1e-3));
  CHECK(c.moe.layers[0].model_layer == 1);
  CHECK(c.moe.layers[0].shared_intermediate == 2816);
  CHECK(c.moe.layers[0].routing.kind == RoutingKind::kSoftmaxTopK);
  CHECK(c.latent == LatentAttentionConfig{512, 0, 128, 64, 128});
  CHECK(c.head_dim == 192);
  CHECK(c.rope.dim == 64);
  CHECK(c.rope.interleaved);
  const double mscale = 0.1 * 0.707 * std::log(40.0) + 1;
  CHECK(c.attention_scale == Approx(mscale * mscale / std::sqrt(192.0)));
}

TEST_CASE("DeepSeek-V3") {
  const HfConfig c = Parse(DeepSeekV3());
  CHECK(BillionsInExperts(c) == Approx(653.9).epsilon(1e-3));
  const RoutingSpec& r = c.moe.layers[0].routing;
  CHECK(r.kind == RoutingKind::kSigmoidGrouped);
  CHECK((r.num_groups == 8 && r.top_groups == 4 && r.top_k == 8));
  CHECK((r.selection_bias && r.renormalize && r.scaling == 2.5f));
  CHECK(c.latent == LatentAttentionConfig{512, 1536, 128, 64, 128});
  CHECK(c.names.SelectionBias(3) == "model.layers.3.mlp.gate.e_score_correction_bias");
}

// Compared with a transcription of GLM-5.2's config.json in a public repository.
json Glm52() {
  json j = DeepSeekV3();
  for (const char* key : {"rope_theta", "rope_scaling", "quantization_config"}) j.erase(key);
  j.update({{"model_type", "glm_moe_dsa"},
            {"hidden_size", 6144},
            {"num_hidden_layers", 78},
            {"num_attention_heads", 64},
            {"num_key_value_heads", 64},
            {"intermediate_size", 12288},
            {"n_group", 1},
            {"topk_group", 1},
            {"q_lora_rank", 2048},
            {"qk_nope_head_dim", 192},
            {"v_head_dim", 256},
            {"rope_interleave", true},
            {"rope_parameters", {{"rope_theta", 8000000}, {"rope_type", "default"}}},
            {"index_n_heads", 32},
            {"index_head_dim", 128},
            {"index_topk", 2048},
            {"indexer_rope_interleave", true},
            {"index_topk_pattern", nullptr},
            {"index_topk_freq", 4},
            {"index_skip_topk_offset", 3},
            {"index_share_for_mtp_iteration", true},
            {"moe_router_dtype", "float32"}});
  return j;
}

TEST_CASE("DeepSeek-V3.2") {
  json j = DeepSeekV3();
  j.update({{"model_type", "deepseek_v32"},
            {"index_n_heads", 64},
            {"index_head_dim", 128},
            {"index_topk", 2048}});
  const HfConfig c = Parse(j);
  CHECK(BillionsInExperts(c) == Approx(653.9).epsilon(1e-3));
  CHECK(c.latent == LatentAttentionConfig{512, 1536, 128, 64, 128});
  CHECK(c.indexer == IndexerConfig{64, 128, 2048, false});
  for (const MixerConfig& mixer : c.mixers) CHECK(mixer == MixerConfig());
  CHECK_FALSE(c.experts_only);
}

TEST_CASE("GLM-5.2: every fourth layer has an indexer, however the file says it") {
  json j = Glm52();
  const HfConfig c = Parse(j);
  CHECK(c.indexer == IndexerConfig{32, 128, 2048, true});
  std::string letters;
  json types;
  for (size_t i = 0; i < c.mixers.size(); ++i) {
    const bool own = i < 3 || (i - 2) % 4 == 0;
    CHECK(c.mixers[i].shares_index == !own);
    letters += own ? 'F' : 'S';
    types.push_back(own ? "full" : "shared");
  }
  for (const char* key : {"index_topk_freq", "index_skip_topk_offset"}) j.erase(key);
  for (const MixerConfig& mixer : Parse(j).mixers) CHECK_FALSE(mixer.shares_index);
  j["index_topk_pattern"] = letters;
  CHECK(Parse(j).mixers == c.mixers);
  j["index_topk_pattern"] = std::string(78, 'F');
  j["indexer_types"] = types;
  CHECK(Parse(j).mixers == c.mixers);
}

TEST_CASE("indexers that cannot be are refused by name") {
  struct Case {
    const char* key;
    json value;
    const char* message;
  };
  const Case cases[] = {
      {"index_topk", 0, "index_topk is 0"},
      {"index_head_dim", 32, "index_head_dim is 32"},  // fewer channels than are rotated
      {"q_lora_rank", nullptr, "q_lora_rank is missing, legal with an indexer"},
      {"index_skip_topk_offset", 0, "gives the first layer an indexer of its own"},
      {"index_topk_pattern", "FS", "legal are 78 letters, F or S"},
      {"index_topk_pattern", std::string(78, 'f'), "legal are 78 letters, F or S"},
      {"indexer_types", json::array({"full"}), "legal is a list of 78 names, full or shared"},
      {"indexer_types", json(78, "dense"), "legal is a list of 78 names, full or shared"},
      {"indexer_types", json(78, "shared"), "gives the first layer an indexer of its own"},
      {"layer_types", json(78, "full_attention"), "legal is 78 times indexed_attention"},
      {"moe_router_dtype", "bfloat16", "legal is float32"},
      {"index_kpool", 4, "index_kpool"},
  };
  for (const Case& k : cases) {
    INFO(k.key << " " << k.value.dump());
    json j = Glm52();
    j[k.key] = k.value;
    const auto parsed = ParseHfConfig(j.dump(), "c");
    CHECK_THAT(std::string(parsed.status().message()), Catch::Contains(k.message));
  }
}

TEST_CASE("Qwen3-Next-80B-A3B") {
  const HfConfig c = Parse(Qwen3Next());
  CHECK(BillionsInExperts(c) == Approx(77.3).epsilon(1e-3));
  CHECK(std::count_if(c.mixers.begin(), c.mixers.end(),
                      [](const MixerConfig& m) { return m.kind == MixerKind::kDeltaNet; }) == 36);
  CHECK(c.mixers[3].kind == MixerKind::kFull);
  CHECK(c.delta_net == DeltaNetConfig{16, 32, 128, 128, 4});
  CHECK(c.rope.dim == 64);
  CHECK(c.norm == NormKind::kRmsOffset);
  CHECK(c.attention_gate);
}

TEST_CASE("Llama-4-Scout") {
  const HfConfig c = Parse(Scout());
  CHECK(BillionsInExperts(c) == Approx(96.6).epsilon(1e-3));
  CHECK(c.mixers[0] == MixerConfig{MixerKind::kChunk, 8192});
  CHECK(c.mixers[3] == MixerConfig{MixerKind::kFull, 0, false});
  CHECK(c.temperature.scale == 0.1);
  CHECK((c.rope.factor == 16 && c.rope.low_freq_factor == 1 && c.rope.high_freq_factor == 1));
  CHECK(c.moe.layers[0].routing.kind == RoutingKind::kTopKSigmoid);
  CHECK(c.moe.layers[0].routing.weight_input);
  CHECK(c.names.Router(7) == "language_model.model.layers.7.feed_forward.router.weight");
}

// Compared with whole copies of the published file beside models that were trained from it.
TEST_CASE("gpt-oss-20b") {
  json types = json::array();
  for (int i = 0; i < 24; ++i) types.push_back(i % 2 ? "full_attention" : "sliding_attention");
  json j = {{"model_type", "gpt_oss"},
            {"vocab_size", 201088},
            {"hidden_size", 2880},
            {"num_hidden_layers", 24},
            {"num_attention_heads", 64},
            {"num_key_value_heads", 8},
            {"head_dim", 64},
            {"intermediate_size", 2880},
            {"num_local_experts", 32},
            {"num_experts_per_tok", 4},
            {"sliding_window", 128},
            {"layer_types", types},
            {"swiglu_limit", 7.0},
            {"attention_bias", true},
            {"max_position_embeddings", 131072},
            {"rope_theta", 150000},
            {"rope_scaling",
             {{"rope_type", "yarn"},
              {"factor", 32.0},
              {"beta_fast", 32.0},
              {"beta_slow", 1.0},
              {"truncate", false},
              {"original_max_position_embeddings", 4096}}},
            {"quantization_config", {{"quant_method", "mxfp4"}}}};
  const HfConfig c = Parse(j);
  CHECK(BillionsInExperts(c) == Approx(19.11).epsilon(1e-3));
  CHECK(c.mixers[0] == MixerConfig{MixerKind::kWindow, 128});
  CHECK(c.mixers[1] == MixerConfig{});
  CHECK(c.attention_sinks);
  CHECK(c.moe.layers[0].activation.alpha == 1.702f);
  CHECK(c.moe.layers[0].expert_bias);
  j.erase("layer_types");
  CHECK(Parse(j).mixers == c.mixers);
}

TEST_CASE("illegal fields of recent families are named") {
  struct Case {
    json config;
    const char* field;
    json value;
    const char* message;
  };
  const Case cases[] = {
      {DeepSeekV2Lite(), "kv_lora_rank", nullptr,
       "c: kv_lora_rank is missing, legal is an integer from 1"},
      {DeepSeekV2Lite(), "qk_rope_head_dim", 63,
       "c: qk_rope_head_dim is 63, legal is an even number"},
      {DeepSeekV2Lite(), "topk_method", "noaux_tc", "legal are greedy, group_limited"},
      {DeepSeekV2Lite(), "norm_topk_prob", true, "c: norm_topk_prob is true, legal is"},
      {DeepSeekV3(), "n_group", 7, "num_groups is 7, legal is a divisor of num_experts (256)"},
      {DeepSeekV3(), "topk_group", 9, "c: topk_group is 9, legal is an integer from 1 to 8"},
      {DeepSeekV3(), "scoring_func", "softmax", "legal is sigmoid"},
      {Qwen3Next(), "linear_num_value_heads", 24,
       "c: linear_num_value_heads is 24, legal is a multiple of linear_num_key_heads (16)"},
      {Qwen3Next(), "layer_types", {"linear_attention"}, "legal is a list of 48 names"},
      {Scout(), "text_config", nullptr, "c: text_config is missing, legal is an object"},
  };
  for (const Case& k : cases) {
    INFO(k.field);
    json j = k.config;
    j[k.field] = k.value;
    const auto c = ParseHfConfig(j.dump(), "c");
    REQUIRE_FALSE(c.ok());
    CHECK_THAT(std::string(c.status().message()), Catch::Contains(k.message));
  }
  json j = Scout();
  j["text_config"]["no_rope_layers"] = {1};
  CHECK_THAT(std::string(ParseHfConfig(j.dump(), "c").status().message()),
             Catch::Contains("c: text_config: no_rope_layers is [1], legal is a list of 48"));
}

}  // namespace
}  // namespace moert
