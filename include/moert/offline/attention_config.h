// The token mixers of a model's layers (attention and others), as config.json describes them.
#ifndef MOERT_OFFLINE_ATTENTION_CONFIG_H_
#define MOERT_OFFLINE_ATTENTION_CONFIG_H_

#include <cstdint>

#include "moert/offline/rope_config.h"

namespace moert {

enum class MixerKind : int32_t {
  kFull = 0,      // attention to all earlier positions
  kWindow = 1,    // attention to the last `span` positions, the own one included
  kChunk = 2,     // attention within chunks of `span` positions (Llama 4)
  kDeltaNet = 3,  // no attention: a gated delta net (Qwen3-Next)
  // Attention to the last `span` positions, and to entries that stand for `rate` earlier positions
  // each. Entries overlap in layers whose indexer chooses among them, and not in layers that ignore
  // it.
  kCompressed = 4,
};

/// The mixer of one layer.
struct MixerConfig {
  MixerKind kind = MixerKind::kFull;
  int64_t span = 0;    // kWindow, kChunk, kCompressed: positions; else 0
  bool rotate = true;  // false: no position embeddings
  /// With an indexer: the layer uses the positions chosen by the last layer with an indexer of its
  /// own.
  bool shares_index = false;
  bool ignores_index = false;  // with an indexer: this layer has none, sees all positions
  int64_t rate = 0;            // kCompressed: positions that become an entry; else 0

  friend bool operator==(const MixerConfig&, const MixerConfig&) = default;
};

/// Layers with windows use these in place of the model's other values (MiMo-V2, Gemma 4).
struct WindowAttention {
  int kv_heads = 0;
  int64_t head_dim = 0;  // of queries and keys
  bool sinks = false;
  RopeConfig rope = {};

  friend bool operator==(const WindowAttention&, const WindowAttention&) = default;
};

/// Normalization of queries and keys.
enum class QkNorm : int32_t {
  kNone = 0,
  kPerHead = 1,    // before RoPE, over head_dim, one weight for all heads
  kFull = 2,       // before RoPE, over all heads together
  kPerHeadL2 = 3,  // after RoPE, over head_dim, without weights; none where a layer has no RoPE
  kPerHeadRotated = 4,  // after RoPE, over head_dim, one weight for all heads
};

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, Sec. 2.1): a position is kept as one
/// latent vector and one rotated key that all heads share.
struct LatentAttentionConfig {
  int64_t kv_rank = 0;  // channels of the latent; 0: the model has no such attention
  int64_t q_rank = 0;   // queries are projected through this many channels; 0: directly
  int64_t nope_dim = 0, rope_dim = 0;  // a head's query channels: not rotated, then rotated
  int64_t value_dim = 0;               // a head's

  friend bool operator==(const LatentAttentionConfig&, const LatentAttentionConfig&) = default;
};

/// Attention of DeepSeek-V4: one head of keys, which are the values, too; queries and outputs pass
/// through fewer channels. The last channels of a head are rotated, and rotated back in its output.
struct CompressedAttentionConfig {
  int64_t q_rank = 0;      // 0: the model has no such attention
  int64_t rope_dim = 0;    // a head's last channels
  int groups = 0;          // groups of heads, whose outputs are projected separately
  int64_t group_rank = 0;  // channels of each of these

  friend bool operator==(const CompressedAttentionConfig&,
                         const CompressedAttentionConfig&) = default;
};

/// Lightning indexer (DeepSeek-V3.2, arXiv 2512.02556, Sec. 2.1): small heads score the earlier
/// positions for a query, and attention sees only the best of them. With blocks (MiniMax-M3) it
/// chooses blocks of positions, each scored by its best position, with one head per key head of
/// attention.
struct IndexerConfig {
  int heads = 0;             // 0: the model has none
  int64_t head_dim = 0;      // of queries and keys; the first channels are rotated, as many as in
                             // attention
  int64_t top_k = 0;         // positions, or blocks of them, that a query sees
  bool interleaved = false;  // RoPE's pairs are neighbours
  int64_t block_size = 0;    // positions; 0: single positions are chosen
  int64_t local_blocks = 0;  // blocks up to the query's own that every query sees

  friend bool operator==(const IndexerConfig&, const IndexerConfig&) = default;
};

/// Gated delta net (arXiv 2412.06464) with a short convolution before it, as in Qwen3-Next.
struct DeltaNetConfig {
  int key_heads = 0;                   // of queries too; 0: the model has no such layers
  int value_heads = 0;                 // a multiple of key_heads
  int64_t key_dim = 0, value_dim = 0;  // a head's
  int64_t kernel = 0;                  // positions that the convolution sees, its own included
  bool separate = false;               // in_proj_qkv, _z, _b and _a, not in_proj_qkvz and _ba

  friend bool operator==(const DeltaNetConfig&, const DeltaNetConfig&) = default;
};

/// Llama 4: in layers without RoPE a query at position p is multiplied by
/// 1 + scale * ln(1 + floor((p + 1) / floor)).
struct QueryTemperature {
  double scale = 0;  // 0: none
  double floor = 1;
};

}  // namespace moert

#endif  // MOERT_OFFLINE_ATTENTION_CONFIG_H_
