// The part of config.json that describes a decoder beside its MoE layers.
#ifndef MOERT_LIB_CHECKPOINT_DECODER_CONFIG_H_
#define MOERT_LIB_CHECKPOINT_DECODER_CONFIG_H_

#include "checkpoint/family_fields.h"

namespace moert {

/// Sizes, attention, norms, RoPE. The number of layers is there already.
void ReadDecoder(const FamilyFields& family, HfConfig& config);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_DECODER_CONFIG_H_
