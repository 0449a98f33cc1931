// Reading QuantizationConfig from config.json, or from hf_quant_config.json beside it.
#ifndef MOERT_LIB_CHECKPOINT_QUANTIZATION_CONFIG_H_
#define MOERT_LIB_CHECKPOINT_QUANTIZATION_CONFIG_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/config_fields.h"
#include "moert/offline/hf_config.h"
#include "moert/offline/quantization_config.h"

namespace moert {

/// The largest group size that is believed.
inline constexpr int64_t kMaxGroup = int64_t{1} << 20;

/// kPlain where there is no quantization_config. Errors stay in `fields`: they say what is read,
/// and which ways are left for what is not. Fields that change nothing are added to `unused`.
QuantizationConfig ReadQuantizationConfig(ConfigFields& fields, std::vector<UnusedField>* unused);

/// The same of ModelOpt's hf_quant_config.json.
absl::StatusOr<QuantizationConfig> ReadHfQuantConfig(JsonValue root, const std::string& path,
                                                     std::vector<UnusedField>* unused);

/// Whether integers of so many bits, in groups of so many channels (-1: a whole row), are read.
absl::Status CheckInt4(int64_t bits, int64_t group);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_QUANTIZATION_CONFIG_H_
