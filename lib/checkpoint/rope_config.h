// Reading RopeConfig from config.json.
#ifndef MOERT_LIB_CHECKPOINT_ROPE_CONFIG_H_
#define MOERT_LIB_CHECKPOINT_ROPE_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "model/config_fields.h"
#include "moert/offline/hf_config.h"
#include "moert/offline/rope_config.h"

namespace moert {

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

#endif  // MOERT_LIB_CHECKPOINT_ROPE_CONFIG_H_
