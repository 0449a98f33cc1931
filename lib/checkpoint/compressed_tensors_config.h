// quantization_config of compressed-tensors: groups of modules, each with its own weights.
#ifndef MOERT_LIB_CHECKPOINT_COMPRESSED_TENSORS_CONFIG_H_
#define MOERT_LIB_CHECKPOINT_COMPRESSED_TENSORS_CONFIG_H_

#include "absl/status/statusor.h"
#include "model/config_fields.h"
#include "moert/offline/quantization_config.h"

namespace moert {

/// The form of all groups; where they differ, fp8 may be the second one, since its tensors are
/// known by their type. InvalidArgument says what is illegal, without naming the file.
absl::StatusOr<QuantizationConfig> ReadCompressedTensors(ConfigFields& fields);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_COMPRESSED_TENSORS_CONFIG_H_
