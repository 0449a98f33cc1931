// The weights of a norm in device memory.
#ifndef MOERT_EXAMPLES_HOST_CUDA_DEVICE_NORM_H_
#define MOERT_EXAMPLES_HOST_CUDA_DEVICE_NORM_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "host/cuda/dense.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"

namespace moert::host {

/// fp32 [width]; a layer normalization has a bias. Weights relative to one are stored with one
/// added.
struct DeviceNorm {
  gpu::Buffer weight, bias;

  /// Reads `name`.weight [width], and `name`.bias for a layer norm. order: the order of the
  /// channels; empty: the checkpoint's.
  static absl::StatusOr<DeviceNorm> Load(const Checkpoint& checkpoint, const std::string& name,
                                         NormKind kind, int64_t width,
                                         const std::vector<int64_t>& order = {});
  static absl::StatusOr<DeviceNorm> Ones(int64_t width);
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_DEVICE_NORM_H_
