// Activations as the schemes with 8 and 4 bit activations round them, for offline measurements.
#ifndef MOERT_LIB_OFFLINE_ACTIVATION_ROUNDING_H_
#define MOERT_LIB_OFFLINE_ACTIVATION_ROUNDING_H_

#include <cstdint>

#include "moert/scheme.h"
#include "offline/expert_mlp.h"

namespace moert::offline {

/// Whether a scheme rounds them.
inline bool RoundsActivations(const Scheme& scheme) { return scheme.act_bits != 16 || scheme.fp8; }

/// Rounds rows of k values in place: a scale per 128 channels for schemes in groups, per row for
/// those per channel, e4m3 for fp8 (moert/mixed_group_gemm.h). Schemes with 16-bit activations
/// leave them as they are.
void RoundActivations(const Scheme& scheme, int64_t k, Floats* x);

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_ACTIVATION_ROUNDING_H_
