// The scheme that a checkpoint's own weights have.
#ifndef MOERT_EXAMPLES_CLI_COMMON_STORED_SCHEME_H_
#define MOERT_EXAMPLES_CLI_COMMON_STORED_SCHEME_H_

#include <optional>
#include <string>

#include "moert/offline/pack.h"
#include "moert/offline/quantization_config.h"

namespace moert::cli {

/// The scheme that represents the weights of a checkpoint in this form, as listed in
/// docs/reference/checkpoints.md; "bf16" for floats.
std::string StoredScheme(const QuantizationConfig& config);

/// The experts of a checkpoint that has them in several schemes, as a version called "stored";
/// nothing where one scheme holds all, or the tensors cannot be opened.
std::optional<PackVersion> MixedVersion(const std::string& model_dir);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_STORED_SCHEME_H_
