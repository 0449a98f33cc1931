// The weights of a layer's mixer in device memory: an input projection, an output projection, and
// the weights used between them.
#ifndef MOERT_EXAMPLES_HOST_CUDA_MIXER_WEIGHTS_H_
#define MOERT_EXAMPLES_HOST_CUDA_MIXER_WEIGHTS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "host/cuda/dense.h"
#include "host/cuda/device_norm.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "util/cuda_api.h"

namespace moert::host {

/// Channels of a mixer's input and output projections.
struct MixerWidths {
  int64_t projected = 0;  // output of the input projection
  int64_t mixed = 0;      // input of the output projection
};
MixerWidths MixerWidthsOf(const HfConfig& config, int layer);

struct MixerWeights {
  /// Grouped attention: queries, keys, values, gates. Latent attention: the queries' latent or the
  /// queries, the keys' latent, the rotated key. Delta nets: as DeltaNetArgs has them.
  DeviceMatrix in;
  DeviceMatrix out;

  DeviceNorm q_norm, k_norm;  // of attention, of its latents, or of a delta net (q_norm)
  gpu::Buffer sinks;          // fp32 [heads]; empty: none

  DeviceMatrix q_up;        // from the queries' latent; empty: `in` gives queries
  DeviceMatrix key, value;  // of latent attention: [heads][kv_rank, nope_dim], [heads][value_dim,
                            // kv_rank]

  gpu::Buffer convolution, rate, dt_bias;  // of delta nets, as DeltaNetArgs has them

  static absl::StatusOr<MixerWeights> Load(const Checkpoint& checkpoint, const HfConfig& config,
                                           int layer);
  /// Random weights for measurements: norms of ones, no biases, sinks of zero. Advances `seed`.
  static absl::StatusOr<MixerWeights> Random(const HfConfig& config, int layer, uint64_t* seed);

 private:
  absl::Status LoadGrouped(const Checkpoint& checkpoint, const HfConfig& config, int layer,
                           const std::string& name);
  /// Loads `out` where values have fewer channels than keys, whose width they have in the cache.
  absl::Status LoadSpreadOut(const Checkpoint& checkpoint, const HfConfig& config, int layer,
                             const std::string& name);
  absl::Status LoadHeadNorms(const Checkpoint& checkpoint, const HfConfig& config, int layer,
                             const std::string& name);
  absl::Status LoadLatent(const Checkpoint& checkpoint, const HfConfig& config,
                          const std::string& name);
  absl::Status LoadAbsorbed(const Checkpoint& checkpoint, const HfConfig& config,
                            const std::string& name);
  absl::Status LoadDeltaNet(const Checkpoint& checkpoint, const HfConfig& config,
                            const std::string& name);
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_MIXER_WEIGHTS_H_
