// Reading QuantizationConfig from config.json.
#ifndef MOERT_LIB_CHECKPOINT_QUANTIZATION_CONFIG_H_
#define MOERT_LIB_CHECKPOINT_QUANTIZATION_CONFIG_H_

#include <vector>

#include "model/config_fields.h"
#include "moert/offline/hf_config.h"
#include "moert/offline/quantization_config.h"

namespace moert {

/// kPlain where there is no quantization_config. Errors stay in `fields`: they say what is read,
/// and which ways are left for what is not. Fields that change nothing are added to `unused`.
QuantizationConfig ReadQuantizationConfig(ConfigFields& fields, std::vector<UnusedField>* unused);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_QUANTIZATION_CONFIG_H_
