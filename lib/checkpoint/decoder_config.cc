#include "checkpoint/decoder_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/compressed_config.h"
#include "checkpoint/config_account.h"
#include "checkpoint/moe_config.h"

namespace moert {
namespace {

// The factor of attention scores in DeepSeek's YaRN: the square of its factor for mscale_all_dim.
double LatentScale(const RopeConfig& rope) {
  if (rope.kind != RopeKind::kYarn || rope.mscale_all_dim == 0 || rope.factor <= 1) return 1;
  const double factor = 0.1 * rope.mscale_all_dim * std::log(rope.factor) + 1;
  return factor * factor;
}

// Latent attention: the sizes of a head are separate fields.
void ReadLatentHeads(ConfigFields& fields, HfConfig& config) {
  LatentAttentionConfig& l = config.latent;
  l.kv_rank = fields.Int("kv_lora_rank", 1, kMaxWidth);
  l.q_rank = fields.Int("q_lora_rank", 1, kMaxWidth, 0);
  l.nope_dim = fields.Int("qk_nope_head_dim", 1, kMaxHeadDim);
  l.rope_dim = fields.Int("qk_rope_head_dim", 2, kMaxHeadDim);
  l.value_dim = fields.Int("v_head_dim", 1, kMaxHeadDim);
  if (l.rope_dim % 2 != 0) fields.Fail("qk_rope_head_dim", "legal is an even number");
  config.head_dim = l.nope_dim + l.rope_dim;
  fields.Int("qk_head_dim", config.head_dim, config.head_dim, config.head_dim);
  WithoutEffect(fields, {"head_dim"}, "latent attention has sizes of its own", &config.unused);
}

void ReadHeads(bool latent, ConfigFields& fields, HfConfig& config) {
  config.num_attention_heads = static_cast<int>(fields.Int("num_attention_heads", 1, kMaxHeads));
  config.num_key_value_heads = static_cast<int>(
      fields.Int("num_key_value_heads", 1, config.num_attention_heads, config.num_attention_heads));
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fields.Fail("num_key_value_heads", fmt::format("legal is a divisor of num_attention_heads ({})",
                                                   config.num_attention_heads));
  }
  if (latent) return ReadLatentHeads(fields, config);
  std::optional<int64_t> derived;
  if (config.hidden_size % config.num_attention_heads == 0) {
    derived = config.hidden_size / config.num_attention_heads;
  }
  config.head_dim = fields.Int("head_dim", 1, kMaxHeadDim, derived);
  if (config.head_dim % 2 != 0) fields.Fail("head_dim", "legal is an even number");
  fields.Int("attention_head_dim", config.head_dim, config.head_dim, config.head_dim);
}

void ReadMixers(const FamilyFields& family, HfConfig& config) {
  ConfigFields& fields = family.fields();
  config.mixers.assign(config.num_hidden_layers, {});
  const std::string mixers = family.family().Text("mixers");
  if (mixers == "chunks") return ReadChunks(fields, config);
  if (mixers == "delta_net") {
    config.delta_net.separate = family.family().Flag("separate_projections");
    return ReadDeltaNet(fields, config);
  }
  if (mixers == "indexed") {
    config.indexer.interleaved = family.Bool("index_interleaved", false);
    return ReadIndexer(fields, config);
  }
  if (mixers == "compressed") return ReadCompressedAttention(fields, config);
  if (mixers == "indexed_blocks") return ReadBlockIndexer(fields, config);
  ReadSlidingWindow(family, config);
}

QkNorm ReadQkNorm(const FamilyFields& family) {
  const std::string kind = family.family().Text("qk_norm");
  if (!family.Bool("qk_norm_if", true)) return QkNorm::kNone;
  if (kind == "per_head") return QkNorm::kPerHead;
  if (kind == "per_head_rotated") return QkNorm::kPerHeadRotated;
  if (kind == "per_head_l2") return QkNorm::kPerHeadL2;
  return kind == "full" ? QkNorm::kFull : QkNorm::kNone;
}

// A boolean, or a number in early files.
bool HasTemperature(ConfigFields& fields) {
  const auto tuning = fields.Find("attn_temperature_tuning");
  if (tuning && tuning->is_number()) return fields.Real("attn_temperature_tuning", 0, 1e6) != 0;
  return fields.Bool("attn_temperature_tuning", true);
}

bool HasWindows(const HfConfig& config) {
  return std::any_of(config.mixers.begin(), config.mixers.end(),
                     [](const MixerConfig& mixer) { return mixer.kind == MixerKind::kWindow; });
}

// Layers with windows have heads, RoPE and sinks of their own.
void ReadWindowAttention(const FamilyFields& family, RopeDefaults defaults, HfConfig& config) {
  ConfigFields& fields = family.fields();
  const ModelFamily& f = family.family();
  const int heads = config.num_attention_heads;
  WindowAttention own;
  const auto times = static_cast<int64_t>(f.Number("window_kv_times", 1));
  const std::string given = family.Present("window_kv_heads");
  own.kv_heads = static_cast<int>(given.empty() ? config.num_key_value_heads * times
                                                : fields.Int(given.c_str(), 1, heads));
  if (own.kv_heads > heads || heads % own.kv_heads != 0) {
    fields.Fail(given.empty() ? "num_key_value_heads" : given.c_str(),
                fmt::format("legal is what gives layers with windows a divisor of "
                            "num_attention_heads ({}), which {} is not",
                            heads, own.kv_heads));
  }
  own.head_dim = fields.Int("swa_head_dim", config.head_dim, config.head_dim, config.head_dim);
  fields.Int("swa_v_head_dim", config.value_dim, config.value_dim, config.value_dim);
  fields.Int("swa_num_attention_heads", heads, heads, heads);
  own.sinks = f.Flag("window_sinks");
  defaults.theta = family.Real("window_rope_theta", 1, 1e12, 10000);
  defaults.theta_key = "";
  own.rope = ReadRopeConfig(fields, defaults, &config.unused, "sliding_attention");
  own.rope.interleaved = config.rope.interleaved;
  config.window = own;
}

// Reads RoPE, and heads if some kind of layers has its own.
void ReadRopes(const FamilyFields& family, HfConfig& config) {
  ConfigFields& fields = family.fields();
  const ModelFamily& f = family.family();
  const bool latent = f.Flag("latent_attention");
  RopeDefaults defaults;
  defaults.theta = f.Number("rope_theta", 10000);
  defaults.partial = f.Number("partial_rotary", 1);
  defaults.max_positions = config.max_position_embeddings;
  defaults.head_dim = latent ? config.latent.rope_dim : config.head_dim;
  if (config.compressed.q_rank > 0) return ReadCompressedRopes(fields, defaults, config);
  const bool by_type = f.Find("window_rope_theta").has_value();
  if (by_type && HasWindows(config)) ReadWindowAttention(family, defaults, config);
  if (f.Find("full_head_dim")) ReadFullHeads(family, config);
  if (!latent) defaults.head_dim = config.head_dim;
  if (f.Flag("rope_by_kind") && !fields.Has("rope_parameters")) {
    fields.Fail("rope_parameters", "legal is an object with one for each type of layer");
  }
  config.rope = ReadRopeConfig(fields, defaults, &config.unused, by_type ? "full_attention" : "");
  config.rope.interleaved = family.Bool("rope_interleaved", false);
}

void ReadAttention(const FamilyFields& family, HfConfig& config) {
  ConfigFields& fields = family.fields();
  const ModelFamily& f = family.family();
  const bool latent = f.Flag("latent_attention");
  ReadHeads(latent, fields, config);
  ReadMixers(family, config);
  config.value_dim = family.Int("value_dim", 1, kMaxHeadDim, 0);
  ReadRopes(family, config);
  if (config.indexer.block_size > 0) CheckBlockIndexer(fields, config);
  config.attention_scale =
      f.Number("attention_scale", 1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  if (latent) config.attention_scale *= LatentScale(config.rope);
  config.qk_norm = ReadQkNorm(family);
  config.qkv_bias = family.Bool("qkv_bias", false);
  config.attention_output_bias = family.Bool("output_bias", false);
  config.attention_gate = f.Flag("attention_gate");
  config.attention_sinks = f.Flag("attention_sinks");
  config.sinks_name = f.Text("sinks_name", "sinks");
  config.value_scale = family.Real("value_scale", 1e-6, 1e6, 1);
  config.value_norm = f.Flag("value_norm");
  config.values_are_keys = family.Bool("values_are_keys", false);
  if (!family.Present("clip_qkv").empty()) config.clip_qkv = family.Real("clip_qkv", 1e-6, 1e6, 0);
  if (f.Flag("temperature") && HasTemperature(fields)) {
    config.temperature.scale = fields.Real("attn_scale", 0, 1e6, 0.1);
    config.temperature.floor = fields.Real("floor_scale", 1, 1e12, 8192);
  }
}

}  // namespace

void ReadDecoder(const FamilyFields& family, HfConfig& config) {
  ConfigFields& fields = family.fields();
  const ModelFamily& f = family.family();
  config.vocab_size = fields.Int("vocab_size", 1, kMaxVocabulary);
  config.max_position_embeddings = fields.Int("max_position_embeddings", 1, kMaxPositions);
  const double eps = fields.Real("layernorm_epsilon", 0.0, 1.0, f.Number("norm_eps", 1e-6));
  config.norm_eps = fields.Real("rms_norm_eps", 0.0, 1.0, eps);
  const std::string norm = f.Text("norm");
  config.norm = norm == "layer"        ? NormKind::kLayer
                : norm == "rms_offset" ? NormKind::kRmsOffset
                                       : NormKind::kRms;
  config.tie_word_embeddings = fields.Bool("tie_word_embeddings", f.Flag("tied"));
  config.lm_head_bias = family.Bool("lm_head_bias", false);
  config.activation = f.Flag("clamped_dense") ? ReadActivation(family)
                                              : ExpertActivation(family.ActivationOf("activation"));
  config.side_experts = f.Flag("side_experts");
  config.logit_cap = family.Real("logit_cap", 1e-6, 1e6, 0);
  if (f.Flag("hyper_connections")) ReadHyperConnections(fields, config);
  if (f.Flag("scaled_embedding")) {
    config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  }
  config.bos_token_id = fields.Int("bos_token_id", -1, config.vocab_size - 1, -1);
  config.eos_token_ids = fields.Ints("eos_token_id", 0, config.vocab_size - 1, true);
  config.dense_block = f.Text("dense_block", "mlp");
  config.embedding_name = f.Text("embedding_name", config.embedding_name);
  config.head_name = f.Text("head_name", config.head_name);
  config.mixer_norm_name = f.Text("mixer_norm_name", config.mixer_norm_name);
  config.mlp_norm_name = f.Text("mlp_norm_name", config.mlp_norm_name);
  ReadAttention(family, config);
}

}  // namespace moert
