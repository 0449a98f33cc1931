// Heads that layers without a window have of their own.
#ifndef MOERT_LIB_CHECKPOINT_FULL_HEADS_H_
#define MOERT_LIB_CHECKPOINT_FULL_HEADS_H_

#include "checkpoint/family_fields.h"
#include "moert/offline/hf_config.h"

namespace moert {

/// Their size and number (Gemma 4): two fields of the model as published, or an object for each of
/// these layers as transformers 5 writes it. `config` has those of the others before.
void ReadFullHeads(const FamilyFields& family, HfConfig& config);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_FULL_HEADS_H_
