#include "checkpoint/decoder_config.h"

#include <fmt/format.h>

#include <cmath>

#include "checkpoint/config_account.h"
#include "checkpoint/decoder_mixers.h"
#include "checkpoint/moe_config.h"
#include "checkpoint/rope_config.h"

namespace moert {
namespace {

// The scores' factor of DeepSeek's YaRN: the square of its factor for mscale_all_dim.
double LatentScale(const RopeConfig& rope) {
  if (rope.kind != RopeKind::kYarn || rope.mscale_all_dim == 0 || rope.factor <= 1) return 1;
  const double factor = 0.1 * rope.mscale_all_dim * std::log(rope.factor) + 1;
  return factor * factor;
}

// Latent attention: sizes of a head are fields of their own.
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

// Every full_every-th layer sees all positions, unless layer_types says which.
void ReadFullEvery(const FamilyFields& family, HfConfig& config) {
  if (family.fields().Has("layer_types")) {
    const std::string pattern = family.Present("full_every");
    if (pattern.empty()) return;
    return WithoutEffect(family.fields(), {pattern.c_str()}, "layer_types is there, too",
                         &config.unused);
  }
  const auto every = static_cast<size_t>(family.Int("full_every", 1, kMaxLayerCount, 1));
  for (size_t i = every - 1; i < config.mixers.size(); i += every) config.mixers[i] = {};
}

void ReadMixers(const FamilyFields& family, HfConfig& config) {
  ConfigFields& fields = family.fields();
  config.mixers.assign(static_cast<size_t>(config.num_hidden_layers), {});
  const std::string mixers = family.family().Text("mixers");
  if (mixers == "chunks") return ReadChunks(fields, config);
  if (mixers == "delta_net") {
    config.delta_net.separate = family.family().Flag("separate_projections");
    return ReadDeltaNet(fields, config);
  }
  ReadSlidingWindow(!family.family().Flag("window_needs_flag"), fields, config);
  if (family.family().Find("full_every")) ReadFullEvery(family, config);
  const bool windows = fields.Int("sliding_window", 0, kMaxPositions, 0) > 0;
  if (!windows || !family.family().Flag("only_windows_rotate")) return;
  for (MixerConfig& mixer : config.mixers) mixer.rotate = mixer.kind == MixerKind::kWindow;
}

QkNorm ReadQkNorm(const FamilyFields& family) {
  const std::string kind = family.family().Text("qk_norm");
  if (!family.Bool("qk_norm_if", true)) return QkNorm::kNone;
  if (kind == "per_head") return QkNorm::kPerHead;
  if (kind == "per_head_rotated") return QkNorm::kPerHeadRotated;
  if (kind == "per_head_l2") return QkNorm::kPerHeadL2;
  return kind == "full" ? QkNorm::kFull : QkNorm::kNone;
}

// A boolean, in early files a number.
bool HasTemperature(ConfigFields& fields) {
  const auto tuning = fields.Find("attn_temperature_tuning");
  if (tuning && tuning->is_number()) return fields.Real("attn_temperature_tuning", 0, 1e6) != 0;
  return fields.Bool("attn_temperature_tuning", true);
}

void ReadAttention(const FamilyFields& family, HfConfig& config) {
  ConfigFields& fields = family.fields();
  const ModelFamily& f = family.family();
  const bool latent = f.Flag("latent_attention");
  ReadHeads(latent, fields, config);
  config.rope = ReadRopeConfig(
      fields,
      {f.Number("rope_theta", 10000), f.Number("partial_rotary", 1), config.max_position_embeddings,
       latent ? config.latent.rope_dim : config.head_dim},
      &config.unused);
  config.rope.interleaved = family.Bool("rope_interleaved", false);
  config.attention_scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  if (latent) config.attention_scale *= LatentScale(config.rope);
  ReadMixers(family, config);
  config.qk_norm = ReadQkNorm(family);
  config.qkv_bias = family.Bool("qkv_bias", false);
  config.attention_output_bias = family.Bool("output_bias", false);
  config.attention_gate = f.Flag("attention_gate");
  config.attention_sinks = f.Flag("attention_sinks");
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
  config.norm_eps = fields.Real("rms_norm_eps", 0.0, 1.0, f.Number("norm_eps", 1e-6));
  const std::string norm = f.Text("norm");
  config.norm = norm == "layer"        ? NormKind::kLayer
                : norm == "rms_offset" ? NormKind::kRmsOffset
                                       : NormKind::kRms;
  config.tie_word_embeddings = fields.Bool("tie_word_embeddings", false);
  config.lm_head_bias = family.Bool("lm_head_bias", false);
  config.activation = fields.ActivationOf("hidden_act", "silu");
  config.bos_token_id = fields.Int("bos_token_id", -1, config.vocab_size - 1, -1);
  config.eos_token_ids = fields.Ints("eos_token_id", 0, config.vocab_size - 1, true);
  config.dense_block = f.Text("dense_block", "mlp");
  ReadAttention(family, config);
}

}  // namespace moert
