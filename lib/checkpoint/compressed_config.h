// Attention to entries that stand for several positions, as config.json describes it (DeepSeek-V4).
#ifndef MOERT_LIB_CHECKPOINT_COMPRESSED_CONFIG_H_
#define MOERT_LIB_CHECKPOINT_COMPRESSED_CONFIG_H_

#include "checkpoint/decoder_config.h"
#include "model/config_fields.h"
#include "moert/offline/hf_config.h"

namespace moert {

/// Reads the sizes, the indexer's too, and what each layer sees. Sizes of heads have been read
/// already.
void ReadCompressedAttention(ConfigFields& fields, HfConfig& config);

/// Reads the RoPE of layers that see entries, and that of layers with windows only.
void ReadCompressedRopes(ConfigFields& fields, RopeDefaults defaults, HfConfig& config);

/// Reads the number of residual streams and how they are mixed.
void ReadHyperConnections(ConfigFields& fields, HfConfig& config);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_COMPRESSED_CONFIG_H_
