// config.json of a Hugging Face checkpoint: what libmoert needs of a model, and what a host needs
// to run the rest of it. Each family has a file under architectures/ that knows its fields.
#ifndef MOERT_OFFLINE_HF_CONFIG_H_
#define MOERT_OFFLINE_HF_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/model.h"
#include "moert/offline/attention_config.h"
#include "moert/offline/quantization_config.h"
#include "moert/offline/rope_config.h"
#include "moert/offline/tensor_names.h"
#include "moert/tools/env.h"

namespace moert {

enum class NormKind : int32_t {
  kRms = 0,
  kLayer = 1,      // with bias
  kRmsOffset = 2,  // root mean square, its weight is 1 more than what is stored
};

/// Hyper-connections: several residual streams, which each block reads and writes with weights that
/// depend on the token (mHC, DeepSeek-V4).
struct HyperConnectionConfig {
  int streams = 0;     // 0: one, to which a block's output is added
  int iterations = 0;  // iterations that make rows and columns of the streams' mixture sum to 1
  double eps = 0;

  friend bool operator==(const HyperConnectionConfig&, const HyperConnectionConfig&) = default;
};

/// A field of config.json that does not change the computation, and why. Fields of nested objects
/// are called "rope_scaling.type".
struct UnusedField {
  std::string key = {};
  std::string why = {};
};

struct HfConfig {
  std::string model_type = {};
  MoeModelSpec moe = {};
  MoeTensorNames names = {};
  /// Tensor names of other exporters, tried where the checkpoint has no router under `names`.
  std::vector<MoeTensorNames> other_names = {};
  QuantizationConfig quantization = {};

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int num_hidden_layers = 0;
  int num_attention_heads = 0;
  int num_key_value_heads = 0;
  int64_t head_dim = 0;   // of queries and keys
  int64_t value_dim = 0;  // of values; 0: head_dim. Latent attention has its own
  int64_t max_position_embeddings = 0;
  RopeConfig rope = {};

  NormKind norm = NormKind::kRms;
  double norm_eps = 1e-6;
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool lm_head_bias = false;
  double clip_qkv = 0;  // 0: none; else queries, keys and values are clamped to +-clip_qkv
  bool tie_word_embeddings = false;

  std::vector<MixerConfig> mixers = {};  // by model layer
  LatentAttentionConfig latent = {};     // instead of keys and values a head
  CompressedAttentionConfig compressed = {};
  IndexerConfig indexer = {};  // which positions attention sees
  DeltaNetConfig delta_net = {};
  double attention_scale = 0;        // what queries times keys are multiplied by
  bool attention_gate = false;       // q_proj has a gate behind each head's query
  bool attention_sinks = false;      // an extra score per head that attends to nothing
  std::string sinks_name = "sinks";  // self_attn.NAME
  double value_scale = 1;            // of values
  bool value_norm = false;           // a norm of each head's values, without weights
  bool values_are_keys =
      false;  // of layers without a window: k_proj's, neither normalized nor rotated
  /// Layers with windows have these instead of num_key_value_heads, head_dim, attention_sinks and
  /// rope.
  std::optional<WindowAttention> window = {};
  QueryTemperature temperature = {};

  HyperConnectionConfig hyper = {};
  double embedding_scale = 1;
  double logit_cap = 0;  // 0: none; else logits x are cap tanh(x / cap)
  /// Gemma 4: a dense block stands beside the experts, with the same input; each has norms of its
  /// own, and the host routes.
  bool side_experts = false;
  /// Intermediate size of the dense blocks; 0 when there are none.
  int64_t dense_intermediate = 0;
  ExpertActivation activation = {};  // of dense blocks; gated
  std::vector<bool> is_moe = {};     // by model layer

  /// Prefixes of tensor names outside `names`: tensor_prefix for all, tensor_body for the
  /// embedding, the layers and the last norm. Then the name of a layer's dense feed-forward block.
  std::string tensor_prefix = {};
  std::string tensor_body = "model.";
  std::string dense_block = "mlp";
  std::string embedding_name = "embed_tokens", head_name = "lm_head";
  std::string mixer_norm_name = "input_layernorm", mlp_norm_name = "post_attention_layernorm";

  int64_t bos_token_id = -1;  // -1: none
  std::vector<int64_t> eos_token_ids = {};

  /// Only the MoE blocks are described: the rest of the model is not read, and the host has it.
  bool experts_only = false;

  /// All fields that were not read. One that may change what is computed is an error instead.
  std::vector<UnusedField> unused = {};

  /// Index into moe.layers, or -1 for a dense layer.
  int MoeLayerIndex(int model_layer) const;

  // Grouped attention of a layer.
  int KvHeads(int layer) const;
  int64_t HeadDim(int layer) const;
  int64_t ValueDim(int layer) const;
  bool HasSinks(int layer) const;
  bool HasValues(int layer) const;  // a v_proj
  const RopeConfig& Rope(int layer) const;
};

/// Parses `text`; `source` begins every error message, which names field, value and legal range.
/// An unknown architecture's error lists the supported ones.
absl::StatusOr<HfConfig> ParseHfConfig(absl::string_view text, const std::string& source);

/// Reads config.json; generation_config.json for the end-of-sequence ids if there is one; and
/// hf_quant_config.json if config.json has no quantization_config.
absl::StatusOr<HfConfig> LoadHfConfig(const std::string& model_dir, Env* env = Env::Default());

/// model_type values of this build, sorted.
std::vector<std::string> SupportedArchitectures();

}  // namespace moert

#endif  // MOERT_OFFLINE_HF_CONFIG_H_
