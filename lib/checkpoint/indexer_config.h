// Lightning indexers, as config.json describes them.
#ifndef MOERT_LIB_CHECKPOINT_INDEXER_CONFIG_H_
#define MOERT_LIB_CHECKPOINT_INDEXER_CONFIG_H_

#include "model/config_fields.h"
#include "moert/offline/hf_config.h"

namespace moert {

/// The indexer's sizes, and which layers share what the layer before has chosen. Latent attention's
/// sizes are there already.
void ReadIndexer(ConfigFields& fields, HfConfig& config);

/// The same of an indexer that chooses blocks of positions, and which layers have one. Sizes of
/// attention's heads are there already.
void ReadBlockIndexer(ConfigFields& fields, HfConfig& config);
/// RoPE is there, too: an indexer rotates as many channels.
void CheckBlockIndexer(ConfigFields& fields, const HfConfig& config);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_INDEXER_CONFIG_H_
