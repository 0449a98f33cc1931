// What the decoder needs to know of a model besides its MoE blocks. Architectures differ in this
// data only, never in code paths that ask for their names.
#ifndef MOERT_EXAMPLES_HOST_DECODER_CONFIG_H_
#define MOERT_EXAMPLES_HOST_DECODER_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/model.h"

namespace moert {

struct HfConfig;

namespace host {

enum class NormKind {
  kRms,        // x / rms(x) * w
  kLayerNorm,  // (x - mean) / std * w + b
};

enum class QkNorm {
  kNone,
  kPerHead,    // RMSNorm over each head's channels (Qwen3)
  kFullWidth,  // RMSNorm over all heads' channels at once (OLMoE)
};

struct DecoderConfig {
  std::string architecture;  // HF model_type
  int64_t hidden = 0;
  int num_layers = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab = 0;
  int64_t max_positions = 0;

  NormKind norm = NormKind::kRms;
  float norm_eps = 1e-6f;
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false;
  bool o_bias = false;
  bool lm_head_bias = false;
  bool tied_embeddings = false;
  double rope_theta = 10000.0;
  float clip_qkv = 0.0f;       // OLMoE: q, k, v are clamped to [-clip, clip]; 0: not
  int64_t sliding_window = 0;  // keys a token sees, itself included; 0: all before it

  /// By model layer: index among the MoE layers, or -1 for a dense MLP.
  std::vector<int> moe_layer;
  int64_t dense_intermediate = 0;
  Activation activation = Activation::kSilu;

  int num_moe_layers() const;
};

/// Fails for an architecture the decoder cannot run, naming those it can.
absl::StatusOr<DecoderConfig> MakeDecoderConfig(const HfConfig& config);

}  // namespace host
}  // namespace moert

#endif  // MOERT_EXAMPLES_HOST_DECODER_CONFIG_H_
