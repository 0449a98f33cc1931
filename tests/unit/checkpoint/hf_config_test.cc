#include "moert/offline/hf_config.h"

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using nlohmann::json;

const std::string kTiny = SourceDir() + "/examples/models/tiny-moe";

json TinyJson() { return json::parse(test::ReadFile(kTiny + "/config.json")); }

TEST_CASE("tiny-moe's config") {
  const auto c = LoadHfConfig(kTiny);
  REQUIRE_OK(c.status());
  CHECK(c->model_type == "qwen2_moe");
  CHECK(c->vocab_size == 4096);
  CHECK(c->hidden_size == 128);
  CHECK(c->num_hidden_layers == 8);
  CHECK(c->num_attention_heads == 4);
  CHECK(c->num_key_value_heads == 2);
  CHECK(c->head_dim == 32);
  CHECK(c->norm_eps == 1e-6);
  CHECK(c->rope.theta == 1e6);
  CHECK(c->rope.kind == RopeKind::kDefault);
  CHECK(c->max_position_embeddings == 2048);
  CHECK(c->tie_word_embeddings);
  CHECK(c->qkv_bias);
  CHECK_FALSE(c->attention_output_bias);
  CHECK(c->eos_token_ids == std::vector<int64_t>{0});
  CHECK(c->dense_intermediate == 0);
  CHECK(c->mixers == std::vector<MixerConfig>(8));
  REQUIRE(c->moe.num_layers() == 8);
  MoeLayerSpec expected;
  expected.model_layer = 5;
  expected.num_experts = 32;
  expected.hidden = 128;
  expected.intermediate = 64;
  expected.shared_intermediate = 128;
  expected.shared_gate = true;
  expected.routing.top_k = 4;
  CHECK(c->moe.layers[5] == expected);
  CHECK(c->names.Expert(3, 17, Projection::kDown) ==
        "model.layers.3.mlp.experts.17.down_proj.weight");
  CHECK(c->names.Router(3) == "model.layers.3.mlp.gate.weight");
  CHECK(c->names.SharedExpert(3, Projection::kUp) ==
        "model.layers.3.mlp.shared_expert.up_proj.weight");
  CHECK(c->names.SharedGate(3) == "model.layers.3.mlp.shared_expert_gate.weight");
}

TEST_CASE("dense layers, RoPE variants, windows and ids") {
  json j = TinyJson();
  j["decoder_sparse_step"] = 2;
  j["mlp_only_layers"] = {5};
  j["use_sliding_window"] = true;
  j["max_window_layers"] = 6;
  j["eos_token_id"] = {3, 4};
  j["head_dim"] = 64;
  j["rope_parameters"] = {{"rope_theta", 5e5}, {"rope_type", "yarn"}, {"factor", 4.0}};
  const auto c = ParseHfConfig(j.dump(), "c");
  REQUIRE_OK(c.status());
  CHECK(c->is_moe == std::vector<bool>{false, true, false, true, false, false, false, true});
  REQUIRE(c->moe.num_layers() == 3);
  CHECK(c->moe.layers[2].model_layer == 7);
  CHECK(c->MoeLayerIndex(7) == 2);
  CHECK(c->MoeLayerIndex(5) == -1);
  CHECK(c->dense_intermediate == 256);
  std::vector<MixerConfig> mixers(6);
  mixers.resize(8, {MixerKind::kWindow, 2048});
  CHECK(c->mixers == mixers);
  CHECK(c->eos_token_ids == std::vector<int64_t>{3, 4});
  CHECK(c->head_dim == 64);
  CHECK(c->rope.theta == 5e5);
  CHECK(c->rope.kind == RopeKind::kYarn);
  CHECK(c->rope.factor == 4.0);
  CHECK(c->rope.original_max_positions == 2048);
}

TEST_CASE("an illegal field is named with file, value and range") {
  struct Case {
    const char* field;
    json value;
    const char* message;
  };
  const Case cases[] = {
      {"model_type", "gpt2",
       "c: model_type is \"gpt2\", which is not supported; supported are: afmoe, aria, "
       "aria_text, "},
      {"model_type", "gpt2", "xverse, zaya; other ways: "},
      {"model_type", nullptr, "c: model_type is missing, legal is a string"},
      {"hidden_size", -128, "c: hidden_size is -128, legal is an integer from 1 to 1048576"},
      {"hidden_size", 128.5, "c: hidden_size is 128.5, legal is an integer from 1 to 1048576"},
      {"hidden_size", 18446744073709551615u, "c: hidden_size is 18446744073709551615, legal is"},
      {"hidden_size", nullptr, "c: hidden_size is missing, legal is"},
      {"num_experts", 0, "c: num_experts is 0, legal is an integer from 1 to 65536"},
      {"num_experts_per_tok", 33, "c: num_experts_per_tok is 33, legal is an integer from 1 to 32"},
      {"moe_intermediate_size", "64", "c: moe_intermediate_size is \"64\", legal is"},
      {"num_key_value_heads", 3,
       "c: num_key_value_heads is 3, legal is a divisor of num_attention_heads (4)"},
      {"head_dim", 33, "c: head_dim is 33, legal is an even number"},
      {"rope_theta", 0, "c: rope_theta is 0, legal is a number from 1 to"},
      {"rope_scaling", 7, "c: rope_scaling is 7, legal is an object"},
      {"hidden_act", "relu", "c: hidden_act is \"relu\", legal are silu"},
      {"norm_topk_prob", 1, "c: norm_topk_prob is 1, legal is true or false"},
      {"mlp_only_layers", {8}, "c: mlp_only_layers is [8], legal is a list of at most 65536"},
      {"mlp_only_layers", {0, 1, 2, 3, 4, 5, 6, 7}, "c: number of MoE layers is 0"},
      {"eos_token_id", 4096, "c: eos_token_id is 4096, legal is an integer from 0 to 4095"},
      {"quantization_config",
       {{"quant_method", "bitsandbytes"}},
       "quant_method \"bitsandbytes\" is not read; read are: fp8 (e4m3"},
      {"quantization_config", {{"quant_method", "gptq"}}, "group_size is missing"},
      {"quantization_config",
       {{"quant_method", "gptq"}, {"bits", 8}, {"group_size", 128}},
       "8 bits in groups of 128: legal are 4 bits in groups of a multiple of 32, or of -1, a row"},
      {"quantization_config",
       {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}, {"version", "gemv"}},
       "version \"gemv\": legal is gemm"},
      {"quantization_config",
       {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}, {"format", "gemv"}},
       "version \"gemv\": legal is gemm"},
      {"quantization_config",
       {{"quant_method", "fp8"}, {"weight_block_size", {64, 64}}},
       "weight_block_size [128, 128]"},
      {"partial_rotary_factor", 0.01, "c: partial_rotary_factor is 0.01, legal is what makes"},
      {"rotary_dim", 34, "c: rotary_dim is 34, legal is an integer from 2 to 32"},
      {"rope_scaling",
       {{"type", "dynamic"}, {"factor", 2.0}},
       "rope_scaling: type is \"dynamic\", legal are default, linear, llama3, yarn, longrope"},
      {"rope_scaling",
       {{"rope_type", "yarn"}, {"factor", 0.5}},
       "rope_scaling: factor is 0.5, legal is a number from 1 to"},
      {"rope_scaling",
       {{"rope_type", "longrope"}, {"factor", 2.0}, {"short_factor", {1.0}}},
       "rope_scaling: short_factor is [1.0], legal is a list of 16 numbers"},
      {"rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 2.0}, {"low_freq_factor", 4}, {"high_freq_factor", 1}},
       "high_freq_factor is 1, legal is low_freq_factor (4) or more"},
      {"num_hidden_layers", 1000000, "legal is an integer from 1 to 4096"},
  };
  for (const Case& k : cases) {
    json j = TinyJson();
    j[k.field] = k.value;
    const auto c = ParseHfConfig(j.dump(), "c");
    INFO(k.field << " = " << k.value.dump());
    REQUIRE_FALSE(c.ok());
    CHECK_THAT(std::string(c.status().message()), Catch::Contains(k.message));
  }
  // 131 is prime: no head size follows from it.
  json j = TinyJson();
  j["hidden_size"] = 131;
  CHECK_THAT(std::string(ParseHfConfig(j.dump(), "c").status().message()),
             Catch::Contains("head_dim is missing"));
}

// The sizes that the models' authors publish, as their config.json has them (fields that say
// nothing of sizes or routing are left out).
TEST_CASE("published configurations") {
  json longrope = {{"type", "longrope"},
                   {"long_mscale", 1.243163121016122},
                   {"short_mscale", 1.243163121016122},
                   {"original_max_position_embeddings", 4096}};
  longrope["short_factor"] = longrope["long_factor"] = std::vector<double>(64, 1.0);
  struct Published {
    const char* name;
    json config;
    int moe_layers, first_moe_layer, experts, top_k;
    RoutingKind routing;
    bool renormalize;
    int64_t shared;
    double billions;  // of weights in routed experts
  };
  const Published models[] = {
      {"Qwen1.5-MoE-A2.7B",
       {{"model_type", "qwen2_moe"},
        {"vocab_size", 151936},
        {"hidden_size", 2048},
        {"num_hidden_layers", 24},
        {"num_attention_heads", 16},
        {"num_key_value_heads", 16},
        {"intermediate_size", 5632},
        {"moe_intermediate_size", 1408},
        {"max_position_embeddings", 8192},
        {"shared_expert_intermediate_size", 5632},
        {"num_experts", 60},
        {"num_experts_per_tok", 4},
        {"norm_topk_prob", false},
        {"decoder_sparse_step", 1},
        {"sliding_window", 32768},
        {"use_sliding_window", false},
        {"max_window_layers", 21}},
       24,
       0,
       60,
       4,
       RoutingKind::kSoftmaxTopK,
       false,
       5632,
       12.46},
      {"Qwen3-30B-A3B",
       {{"model_type", "qwen3_moe"},
        {"vocab_size", 151936},
        {"hidden_size", 2048},
        {"num_hidden_layers", 48},
        {"num_attention_heads", 32},
        {"num_key_value_heads", 4},
        {"head_dim", 128},
        {"intermediate_size", 6144},
        {"moe_intermediate_size", 768},
        {"max_position_embeddings", 40960},
        {"num_experts", 128},
        {"num_experts_per_tok", 8},
        {"norm_topk_prob", true},
        {"decoder_sparse_step", 1},
        {"mlp_only_layers", json::array()},
        {"sliding_window", nullptr},
        {"rope_scaling", nullptr},
        {"rope_theta", 1000000.0},
        {"quantization_config",
         {{"activation_scheme", "dynamic"},
          {"fmt", "e4m3"},
          {"quant_method", "fp8"},
          {"modules_to_not_convert", {"lm_head"}},
          {"weight_block_size", {128, 128}}}}},
       48,
       0,
       128,
       8,
       RoutingKind::kSoftmaxTopK,
       true,
       0,
       28.99},
      {"Mixtral-8x7B-v0.1",
       {{"model_type", "mixtral"},
        {"vocab_size", 32000},
        {"hidden_size", 4096},
        {"num_hidden_layers", 32},
        {"num_attention_heads", 32},
        {"num_key_value_heads", 8},
        {"intermediate_size", 14336},
        {"max_position_embeddings", 32768},
        {"num_local_experts", 8},
        {"num_experts_per_tok", 2},
        {"rms_norm_eps", 1e-5},
        {"rope_theta", 1000000.0},
        {"router_aux_loss_coef", 0.02},
        {"sliding_window", nullptr}},
       32,
       0,
       8,
       2,
       RoutingKind::kTopKSoftmax,
       false,
       0,
       45.10},
      {"OLMoE-1B-7B-0924",
       {{"model_type", "olmoe"},
        {"vocab_size", 50304},
        {"hidden_size", 2048},
        {"num_hidden_layers", 16},
        {"num_attention_heads", 16},
        {"num_key_value_heads", 16},
        {"intermediate_size", 1024},
        {"max_position_embeddings", 4096},
        {"num_experts", 64},
        {"num_experts_per_tok", 8},
        {"norm_topk_prob", false},
        {"clip_qkv", nullptr}},
       16,
       0,
       64,
       8,
       RoutingKind::kSoftmaxTopK,
       false,
       0,
       6.44},
      {"Phi-3.5-MoE-instruct",
       {{"model_type", "phimoe"},
        {"vocab_size", 32064},
        {"hidden_size", 4096},
        {"num_hidden_layers", 32},
        {"num_attention_heads", 32},
        {"num_key_value_heads", 8},
        {"intermediate_size", 6400},
        {"max_position_embeddings", 131072},
        {"num_local_experts", 16},
        {"num_experts_per_tok", 2},
        {"attention_bias", true},
        {"lm_head_bias", true},
        {"sliding_window", 131072},
        {"router_jitter_noise", 0.01},
        {"rope_theta", 10000.0},
        {"rope_scaling", longrope}},
       32,
       0,
       16,
       2,
       RoutingKind::kSparseMixer,
       false,
       0,
       40.27},
      {"deepseek-moe-16b-base",
       {{"model_type", "deepseek"},
        {"vocab_size", 102400},
        {"hidden_size", 2048},
        {"num_hidden_layers", 28},
        {"num_attention_heads", 16},
        {"num_key_value_heads", 16},
        {"intermediate_size", 10944},
        {"moe_intermediate_size", 1408},
        {"max_position_embeddings", 4096},
        {"n_routed_experts", 64},
        {"n_shared_experts", 2},
        {"num_experts_per_tok", 6},
        {"first_k_dense_replace", 1},
        {"moe_layer_freq", 1},
        {"norm_topk_prob", false},
        {"scoring_func", "softmax"},
        {"rope_scaling", nullptr}},
       27,
       1,
       64,
       6,
       RoutingKind::kSoftmaxTopK,
       false,
       2816,
       14.95},
      {"XVERSE-MoE-A4.2B",
       {{"model_type", "xverse"},
        {"vocab_size", 100534},
        {"hidden_size", 2560},
        {"num_hidden_layers", 28},
        {"num_attention_heads", 32},
        {"intermediate_size", 1728},
        {"max_position_embeddings", 8192},
        {"num_experts", 64},
        {"moe_top_k", 6},
        {"num_shared_experts", 2},
        {"rope_theta", 500000}},
       28,
       0,
       64,
       6,
       RoutingKind::kSoftmaxTopK,
       true,
       3456,
       23.78},
  };
  for (const Published& m : models) {
    INFO(m.name);
    const auto c = ParseHfConfig(m.config.dump(), m.name);
    REQUIRE_OK(c.status());
    CHECK(c->moe.num_layers() == m.moe_layers);
    const MoeLayerSpec& layer = c->moe.layers[0];
    CHECK(layer.model_layer == m.first_moe_layer);
    CHECK(layer.num_experts == m.experts);
    CHECK(layer.routing.top_k == m.top_k);
    CHECK(layer.routing.kind == m.routing);
    CHECK(layer.routing.renormalize == m.renormalize);
    CHECK(layer.shared_intermediate == m.shared);
    CHECK(layer.shared_gate == (c->model_type == "qwen2_moe"));
    const double weights = static_cast<double>(c->moe.total_experts()) * 3 *
                           static_cast<double>(layer.hidden * layer.intermediate);
    CHECK(weights / 1e9 == Approx(m.billions).epsilon(1e-3));
    for (const MixerConfig& mixer : c->mixers) {
      CHECK((mixer.kind == MixerKind::kFull || mixer.span == c->max_position_embeddings));
    }
  }
}

TEST_CASE("a folder without config.json") {
  test::TempDir dir;
  const auto c = LoadHfConfig(dir.path());
  CHECK(c.status().code() == absl::StatusCode::kNotFound);
  CHECK_THAT(std::string(c.status().message()), Catch::Contains(dir / "config.json"));
}

TEST_CASE("what is no checkpoint's folder is said to be what it is") {
  test::TempDir dir;
  const auto says = [](const std::string& path) {
    return std::string(LoadHfConfig(path).status().message());
  };
  CHECK_THAT(says(dir / "absent"), Catch::EndsWith("there is no such folder"));
  test::WriteFile(dir / "model.gguf", "GGUF");
  CHECK_THAT(says(dir / "model.gguf"),
             Catch::Contains("model.gguf is a GGUF file; llama.cpp runs it"));
  CHECK_THAT(says(dir.path()), Catch::Contains("model.gguf is a GGUF file; llama.cpp runs it"));
  test::WriteFile(dir / "model.safetensors", "");
  CHECK_THAT(says(dir / "model.safetensors"), Catch::EndsWith("is a folder, this is a file"));
  test::WriteFile(dir / "moert.json", "{}");
  CHECK_THAT(says(dir.path()), Catch::EndsWith("the folder is an expert pack"));
}

TEST_CASE("generation_config.json decides where a text ends") {
  test::TempDir dir;
  test::WriteFile(dir / "config.json", TinyJson().dump());
  test::WriteFile(dir / "generation_config.json", R"({"eos_token_id": [7, 9]})");
  const auto c = LoadHfConfig(dir.path());
  REQUIRE_OK(c.status());
  CHECK(c->eos_token_ids == std::vector<int64_t>{7, 9});
  test::WriteFile(dir / "generation_config.json", "{");
  CHECK_FALSE(LoadHfConfig(dir.path()).ok());
}

}  // namespace
}  // namespace moert
