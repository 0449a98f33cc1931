// Attention to entries that stand for several positions, as config.json describes it (DeepSeek-V4).
#ifndef MOERT_LIB_CHECKPOINT_COMPRESSED_CONFIG_H_
#define MOERT_LIB_CHECKPOINT_COMPRESSED_CONFIG_H_

#include "checkpoint/decoder_config.h"
#include "model/config_fields.h"
#include "moert/offline/hf_config.h"

namespace moert {

/// Sizes, the indexer's too, and what each layer sees. Sizes of heads are there already.
void ReadCompressedAttention(ConfigFields& fields, HfConfig& config);

/// RoPE of layers that see entries, and that of layers with windows alone.
void ReadCompressedRopes(ConfigFields& fields, RopeDefaults defaults, HfConfig& config);

/// How many residual streams there are, and how they are mixed.
void ReadHyperConnections(ConfigFields& fields, HfConfig& config);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_COMPRESSED_CONFIG_H_
