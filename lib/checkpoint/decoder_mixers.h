// Which mixer each layer of a decoder has, where a family has a way of its own to say so.
#ifndef MOERT_LIB_CHECKPOINT_DECODER_MIXERS_H_
#define MOERT_LIB_CHECKPOINT_DECODER_MIXERS_H_

#include "checkpoint/family_fields.h"
#include "model/config_fields.h"
#include "moert/offline/hf_config.h"

namespace moert {

/// Llama 4: attention in chunks, but for layers without RoPE, which see everything.
void ReadChunks(ConfigFields& fields, HfConfig& config);

/// Qwen3-Next: three layers of gated delta net to one of attention.
void ReadDeltaNet(ConfigFields& fields, HfConfig& config);

/// Which layers look only at the last sliding_window positions, and which of them rotate.
void ReadSlidingWindow(const FamilyFields& family, HfConfig& config);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_DECODER_MIXERS_H_
