// The MoE layers of a model, read from its config.json as its family's description says.
#ifndef MOERT_LIB_CHECKPOINT_MOE_CONFIG_H_
#define MOERT_LIB_CHECKPOINT_MOE_CONFIG_H_

#include <cstdint>

#include "checkpoint/family.h"

namespace moert {

// Ranges shared by the readers.
inline constexpr int64_t kMaxLayerCount = 4096;
inline constexpr int64_t kMaxExpertCount = 65536;
inline constexpr int64_t kMaxVocabulary = int64_t{1} << 31;
inline constexpr int64_t kMaxPositions = int64_t{1} << 31;
inline constexpr int64_t kMaxHeads = 65536;
inline constexpr int64_t kMaxHeadDim = 65536;
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxFfnWidth = int64_t{1} << 22;

/// num_hidden_layers, and is_moe by layer.
void ReadMoePlaces(const FamilyFields& family, HfConfig& config);

/// The activation of experts.
ExpertActivation ReadActivation(const FamilyFields& family);

/// moe.layers, names and other_names. The sizes of the model are there already.
void ReadMoeLayers(const FamilyFields& family, HfConfig& config);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_MOE_CONFIG_H_
