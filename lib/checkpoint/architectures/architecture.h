// One model family: which fields of config.json it has, and how its tensors are called. To add a
// family, write a file beside this one and list it in registry.cc.
#ifndef MOERT_LIB_CHECKPOINT_ARCHITECTURES_ARCHITECTURE_H_
#define MOERT_LIB_CHECKPOINT_ARCHITECTURES_ARCHITECTURE_H_

#include "absl/types/span.h"
#include "model/config_fields.h"
#include "moert/offline/hf_config.h"

namespace moert {

struct Architecture {
  const char* model_type;
  /// Fills moe, names and whatever differs from the defaults of a decoder. The fields that all
  /// families share are already in `config`. Errors stay in `fields`.
  void (*read)(ConfigFields& fields, HfConfig& config);
  // What the family's own configuration class takes for a field that the file does not have.
  double rope_theta = 10000.0;
  double norm_eps = 1e-6;
  /// Whether sliding_window is in force without use_sliding_window saying so.
  bool window_without_flag = true;
};

extern const Architecture kDeepseek;
extern const Architecture kMixtral;
extern const Architecture kOlmoe;
extern const Architecture kPhimoe;
extern const Architecture kQwen2Moe;
extern const Architecture kQwen3Moe;
extern const Architecture kXverse;

absl::Span<const Architecture* const> Architectures();

// Ranges shared by the readers.
inline constexpr int64_t kMaxLayerCount = 4096;
inline constexpr int64_t kMaxExpertCount = 65536;
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxFfnWidth = int64_t{1} << 22;

/// How a file calls the number of experts: transformers 5 writes num_local_experts for families
/// that had num_experts.
const char* ExpertCountKey(const ConfigFields& fields);

/// is_moe of the Qwen families: every decoder_sparse_step-th layer but for mlp_only_layers.
void ReadSparseStep(ConfigFields& fields, HfConfig& config);

/// attention_bias: bias on q, k, v and the output projection.
void ReadAttentionBias(ConfigFields& fields, HfConfig& config);

/// Names under model.layers.{layer}.mlp with gate_proj, up_proj and down_proj, no shared expert.
MoeTensorNames MlpNames();

/// Names of Mixtral's family: model.layers.{layer}.block_sparse_moe with w1, w3 and w2.
MoeTensorNames BlockSparseNames();

/// Appends `layer` to the spec for each layer with is_moe, with its number filled in.
void AddMoeLayers(const MoeLayerSpec& layer, HfConfig& config);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_ARCHITECTURES_ARCHITECTURE_H_
