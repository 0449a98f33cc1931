// The dense part of a model in device memory.
#ifndef MOERT_EXAMPLES_HOST_CUDA_DEVICE_WEIGHTS_H_
#define MOERT_EXAMPLES_HOST_CUDA_DEVICE_WEIGHTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "host/cuda/dense.h"
#include "host/cuda/device_norm.h"
#include "host/cuda/mixer_weights.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "util/cuda_api.h"

namespace moert::host {

struct DeviceLayer {
  DeviceNorm mixer_norm, mlp_norm;
  MixerWeights mixer;
  int moe_layer = -1;
  DeviceMatrix gate_up, down;  // where moe_layer is -1
};

struct DeviceRope {
  gpu::Buffer frequencies;  // fp32 [sets][pairs of a head], zeros for pairs that are not rotated
  float factors[2] = {1, 1};

  static absl::StatusOr<DeviceRope> Load(const RopeConfig& config, int64_t pairs);
};

struct DeviceWeights {
  DeviceMatrix embedding;
  DeviceMatrix head;  // empty when tied to the embedding
  DeviceNorm final_norm;
  std::vector<DeviceLayer> layers;
  DeviceRope rope;
  DeviceRope window_rope;  // for layers with windows, if it differs

  const DeviceRope& RopeOf(const MixerConfig& mixer) const {
    const bool own = mixer.kind == MixerKind::kWindow && window_rope.frequencies.bytes() > 0;
    return own ? window_rope : rope;
  }

  const DeviceMatrix& output() const { return head.empty() ? embedding : head; }

  /// Reads all but routed and shared experts and routers onto the current device.
  static absl::StatusOr<DeviceWeights> Load(const Checkpoint& checkpoint, const HfConfig& config);
  /// Random weights for measurements, the same for a seed: norms of ones, no biases.
  static absl::StatusOr<DeviceWeights> Random(const HfConfig& config, uint64_t seed);

 private:
  absl::Status LoadRopes(const HfConfig& config);
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_DEVICE_WEIGHTS_H_
