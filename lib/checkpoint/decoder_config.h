// The part of config.json that describes a decoder beside its MoE layers.
#ifndef MOERT_LIB_CHECKPOINT_DECODER_CONFIG_H_
#define MOERT_LIB_CHECKPOINT_DECODER_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/family.h"
#include "model/config_fields.h"
#include "moert/offline/hf_config.h"
#include "moert/offline/rope_config.h"

namespace moert {

/// Reads sizes, attention, norms, RoPE. The number of layers has been read already.
void ReadDecoder(const FamilyFields& family, HfConfig& config);

/// Llama 4: attention in chunks, except in layers without RoPE, which see everything.
void ReadChunks(ConfigFields& fields, HfConfig& config);

/// Qwen3-Next: three layers of gated delta net to one of attention.
void ReadDeltaNet(ConfigFields& fields, HfConfig& config);

/// Which layers see only the last sliding_window positions, and which of them rotate.
void ReadSlidingWindow(const FamilyFields& family, HfConfig& config);

/// Reads the size and number of heads that layers without a window have of their own (Gemma 4): two
/// fields in the published model, or an object for each of these layers as transformers 5 writes
/// it. `config` has the values of the other layers before.
void ReadFullHeads(const FamilyFields& family, HfConfig& config);

/// Reads a lightning indexer's sizes, and which layers reuse the choice of the layer before. Latent
/// attention's sizes have been read already.
void ReadIndexer(ConfigFields& fields, HfConfig& config);

/// The same for an indexer that chooses blocks of positions, and which layers have one. The sizes
/// of attention's heads have been read already.
void ReadBlockIndexer(ConfigFields& fields, HfConfig& config);
/// Called when RoPE has been read, too: an indexer rotates as many channels as attention.
void CheckBlockIndexer(ConfigFields& fields, const HfConfig& config);

/// An architecture's defaults, and sizes of the model.
struct RopeDefaults {
  double theta = 10000.0;
  const char* theta_key = "rope_theta";  // the field beside the object that has it
  double partial = 1.0;                  // the part of a head's channels that is rotated
  int64_t max_positions = 0;
  int64_t head_dim = 0;
};

/// rope_parameters may have an object for each type of layer. Without a `type` all that layer_types
/// names must agree. Errors stay in `fields`; what changes nothing is added to `unused`.
RopeConfig ReadRopeConfig(ConfigFields& fields, const RopeDefaults& defaults,
                          std::vector<UnusedField>* unused, const std::string& type = "");

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_DECODER_CONFIG_H_
