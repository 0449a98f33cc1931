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

/// The largest group size that is accepted.
inline constexpr int64_t kMaxGroup = int64_t{1} << 20;

/// kPlain if there is no quantization_config. Errors stay in `fields`: they say what is supported,
/// and what to do about the rest. Fields without effect are added to `unused`.
QuantizationConfig ReadQuantizationConfig(ConfigFields& fields, std::vector<UnusedField>* unused);

/// The same of ModelOpt's hf_quant_config.json.
absl::StatusOr<QuantizationConfig> ReadHfQuantConfig(JsonValue root, const std::string& path,
                                                     std::vector<UnusedField>* unused);

/// Whether integers of this many bits, in groups of this many channels (-1: a whole row), are
/// supported.
absl::Status CheckInt4(int64_t bits, int64_t group);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_QUANTIZATION_CONFIG_H_
