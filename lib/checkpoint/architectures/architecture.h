// One model family: which fields of config.json it has, and how its tensors are called. To add a
// family, write a file beside this one, declare its Architecture below and list it in registry.cc.
#ifndef MOERT_LIB_CHECKPOINT_ARCHITECTURES_ARCHITECTURE_H_
#define MOERT_LIB_CHECKPOINT_ARCHITECTURES_ARCHITECTURE_H_

#include "absl/types/span.h"
#include "checkpoint/config_account.h"
#include "model/config_fields.h"
#include "moert/offline/hf_config.h"

namespace moert {

struct Architecture {
  const char* model_type;
  /// Fills moe, names and whatever differs from the defaults of a decoder. The fields that all
  /// families share are already in `config`. Errors stay in `fields`.
  void (*read)(ConfigFields& fields, HfConfig& config);
  // The family's own configuration class takes these for fields that the file does not have.
  double rope_theta = 10000.0;
  double norm_eps = 1e-6;
  double partial_rotary = 1.0;
  /// Whether sliding_window is in force without use_sliding_window saying so.
  bool window_without_flag = true;
  /// Queries, keys and values of a head are projected from latent vectors.
  bool latent_attention = false;
  /// layer_types has names of the family's own, which `read` understands.
  bool own_layer_types = false;
  /// The width of the layers that are not MoE.
  const char* dense_width = "intermediate_size";
  /// Where the fields of the language model are an object of their own: its key, and what its
  /// tensors' names begin with.
  const char* text_config = nullptr;
  const char* tensor_prefix = "";
};

extern const Architecture kDeepseek;
extern const Architecture kDeepseekV2;
extern const Architecture kDeepseekV3;
extern const Architecture kDots1;
extern const Architecture kErnie45Moe;
extern const Architecture kGlm4Moe;
extern const Architecture kGptOss;
extern const Architecture kHunyuanV1Moe;
extern const Architecture kKimiK2;
extern const Architecture kKimiK25;
extern const Architecture kLlama4;
extern const Architecture kLlama4Text;
extern const Architecture kMinimaxM2;
extern const Architecture kMixtral;
extern const Architecture kOlmoe;
extern const Architecture kPhimoe;
extern const Architecture kQwen2Moe;
extern const Architecture kQwen3Moe;
extern const Architecture kQwen3Next;
extern const Architecture kXverse;

absl::Span<const Architecture* const> Architectures();

// Ranges shared by the readers.
inline constexpr int64_t kMaxLayerCount = 4096;
inline constexpr int64_t kMaxExpertCount = 65536;
inline constexpr int64_t kMaxHeads = 65536;
inline constexpr int64_t kMaxHeadDim = 65536;
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxFfnWidth = int64_t{1} << 22;

/// How a file calls the number of experts: transformers 5 writes num_local_experts for families
/// that had num_experts.
const char* ExpertCountKey(const ConfigFields& fields);

/// is_moe of the Qwen families: every decoder_sparse_step-th layer but for mlp_only_layers.
void ReadSparseStep(ConfigFields& fields, HfConfig& config);

/// is_moe of DeepSeek's families and their like: first_k_dense_replace, then every
/// moe_layer_freq-th layer.
void ReadDenseFirst(ConfigFields& fields, HfConfig& config);

/// The experts of the same families: n_routed_experts of moe_intermediate_size, n_shared_experts
/// without gate, num_experts_per_tok, norm_topk_prob, routed_scaling_factor. `renormalize` is the
/// default.
MoeLayerSpec ReadDeepseekExperts(ConfigFields& fields, const HfConfig& config, bool renormalize);

/// Experts behind softmax then top-k, none of them shared: num_experts of the width that the field
/// `width` says, num_experts_per_tok, norm_topk_prob. `renormalize` is the default.
MoeLayerSpec ReadSoftmaxExperts(ConfigFields& fields, const HfConfig& config, const char* width,
                                bool renormalize);

/// Fails where the field is there and another string.
void ExpectString(ConfigFields& fields, const char* key, const char* value);

/// n_group and topk_group.
void ReadGroups(ConfigFields& fields, MoeLayerSpec& layer);

/// attention_bias: bias on q, k, v and the output projection.
void ReadAttentionBias(ConfigFields& fields, HfConfig& config);

/// Names under model.layers.{layer}.mlp with gate_proj, up_proj and down_proj, no shared expert.
MoeTensorNames MlpNames();

/// The same with mlp.shared_experts and mlp.gate.e_score_correction_bias.
MoeTensorNames DeepseekNames();

/// Names of Mixtral's family: model.layers.{layer}.block_sparse_moe with w1, w3 and w2.
MoeTensorNames BlockSparseNames();

/// Appends `layer` to the spec for each layer with is_moe, with its number filled in.
void AddMoeLayers(const MoeLayerSpec& layer, HfConfig& config);

/// The layers and the names of ReadSoftmaxExperts with one gated shared expert.
void AddGatedSharedLayers(ConfigFields& fields, HfConfig& config, bool renormalize);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_ARCHITECTURES_ARCHITECTURE_H_
