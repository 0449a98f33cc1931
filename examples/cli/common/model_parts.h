// The bytes of a checkpoint by part: experts, attention, ...
#ifndef MOERT_EXAMPLES_CLI_COMMON_MODEL_PARTS_H_
#define MOERT_EXAMPLES_CLI_COMMON_MODEL_PARTS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/offline/tensor_account.h"

namespace moert::cli {

struct ModelPart {
  std::string name;
  int64_t tensors = 0;
  int64_t bytes = 0;
  std::set<std::string> types;  // "bf16", ...
};

/// Which part of a model a tensor belongs to, by its name.
inline constexpr char kRoutedExperts[] = "routed experts";
absl::string_view PartOf(absl::string_view tensor);

/// Every tensor counted once, by its name; parts without a tensor are left out. The largest first.
/// For a checkpoint whose configuration is not read.
std::vector<ModelPart> ModelParts(const Checkpoint& checkpoint);

/// The parts of a checkpoint whose configuration is read: used, or left out for a reason.
struct ModelAccount {
  std::vector<ModelPart> used;
  std::vector<ModelPart> left_out;  // names are reasons
  std::vector<ModelPart> unknown;   // names are tensors: nothing reads them
};
ModelAccount SumParts(absl::Span<const AccountedTensor> account);

/// "bf16", ..., or what the file calls a type that is not known.
std::string TypeName(const TensorInfo& tensor);

/// Bytes that the example decoder holds of a dense tensor: quantized weights become bf16.
int64_t DenseBytes(const TensorInfo& tensor);

/// Bytes that the example decoder holds beside the engine's budget: dense weights, and the keys and
/// values of one sequence of `tokens`.
int64_t HostBytes(const Checkpoint& checkpoint, const HfConfig& config, int64_t tokens);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_MODEL_PARTS_H_
