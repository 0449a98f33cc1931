// The account of a checkpoint's tensors: each one is used, left out for a known reason, or unknown.
#ifndef MOERT_OFFLINE_TENSOR_ACCOUNT_H_
#define MOERT_OFFLINE_TENSOR_ACCOUNT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"

namespace moert {

enum class TensorFate {
  kUsed,     // by the MoE blocks or by the rest of a decoder as HfConfig describes it
  kLeftOut,  // for a reason that is known: the model's numbers are the same without it
  kUnknown,  // among the model's tensors, but nothing reads it
};

struct AccountedTensor {
  const TensorInfo* tensor = nullptr;  // of the checkpoint
  TensorFate fate = TensorFate::kUnknown;
  /// Used: "routed experts", "shared experts", "routers", "attention", "dense feed-forward",
  /// "norms", "embedding and head". Else: the reason why it is not.
  std::string what = {};
};

/// In the checkpoint's order. Fails where a tensor of the MoE blocks is missing, has another shape,
/// or is one that nothing reads.
absl::StatusOr<std::vector<AccountedTensor>> AccountForTensors(const Checkpoint& checkpoint,
                                                               const HfConfig& config);

/// InvalidArgument naming the first unknown tensor: what a decoder would compute without it may be
/// something else than the model. Unimplemented where only the experts are described
/// (HfConfig::experts_only). Fails as AccountForTensors, too.
absl::Status CheckTensors(const Checkpoint& checkpoint, const HfConfig& config);

/// Files of safetensors in the checkpoint's folder that are no part of it.
std::vector<std::string> StrayFiles(const Checkpoint& checkpoint);

}  // namespace moert

#endif  // MOERT_OFFLINE_TENSOR_ACCOUNT_H_
