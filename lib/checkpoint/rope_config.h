// Reading RopeConfig from config.json.
#ifndef MOERT_LIB_CHECKPOINT_ROPE_CONFIG_H_
#define MOERT_LIB_CHECKPOINT_ROPE_CONFIG_H_

#include <cstdint>

#include "model/config_fields.h"
#include "moert/offline/rope_config.h"

namespace moert {

/// `theta` and `partial` (the part of a head's channels that is rotated) are the defaults of the
/// architecture. Errors stay in `fields`.
RopeConfig ReadRopeConfig(ConfigFields& fields, double theta, double partial, int64_t max_positions,
                          int64_t head_dim);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_ROPE_CONFIG_H_
