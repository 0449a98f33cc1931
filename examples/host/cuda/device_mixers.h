// Runs the mixer of each layer on a device: everything between the matrix product before the mixing
// of positions and the one after it.
#ifndef MOERT_EXAMPLES_HOST_CUDA_DEVICE_MIXERS_H_
#define MOERT_EXAMPLES_HOST_CUDA_DEVICE_MIXERS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "host/cuda/attention_kernel.h"
#include "host/cuda/dense.h"
#include "host/cuda/device_weights.h"
#include "host/cuda/latent_kernel.h"
#include "host/cuda/step_upload.h"
#include "moert/offline/hf_config.h"
#include "util/cuda_api.h"

namespace moert::host {

/// Unimplemented, naming the field, for sizes that the kernels do not take.
absl::Status CheckDeviceMixers(const HfConfig& config);

/// Unimplemented if rows of such long sequences would have to choose positions, which no kernel
/// does. In shorter sequences each row sees all.
absl::Status CheckDeviceLength(const HfConfig& config, int64_t max_tokens);

/// The mixers of all layers, with their scratch. One thread at a time.
class DeviceMixers {
 public:
  /// For the current device; all arguments but max_rows are borrowed.
  absl::Status Init(const HfConfig& config, const DeviceWeights& weights, DenseProducts* products,
                    int64_t max_rows, CUstream_st* stream);

  /// Makes room for a step of this shape; calls before_move before it frees memory that earlier
  /// steps use.
  absl::Status Reserve(const StepShape& shape, absl::FunctionRef<absl::Status()> before_move);

  /// Enqueues a layer's mixer. `projected` holds the product of the mixer's matrix `in`, without
  /// bias; `mixed` receives the input of its matrix `out`.
  absl::Status Enqueue(int layer, const StepInputs& inputs, const StepShape& shape);

  float* projected() const { return projected_; }  // [rows, the widest layer's]
  uint16_t* mixed() const { return mixed_; }       // likewise, bf16

 private:
  absl::Status Grouped(int layer, const StepInputs& inputs, const StepShape& shape);
  RopeArgs RopeOf(int layer, const StepInputs& inputs, const StepShape& shape) const;
  AttentionArgs AttentionOf(int layer, const StepInputs& inputs, const StepShape& shape) const;
  absl::Status Latent(int layer, const StepInputs& inputs, const StepShape& shape);
  LatentSizes LatentSizesOf(int layer, const StepInputs& inputs, const StepShape& shape) const;
  absl::Status LatentQueriesOf(int layer, const LatentSizes& sizes);
  absl::Status DeltaNet(int layer, const StepInputs& inputs, const StepShape& shape);
  void Carve(gpu::Carver* carver, int64_t rows);
  int64_t PartialBytesOf(const StepShape& shape) const;
  bool latent() const { return config_->latent.kv_rank > 0; }
  float* partials() const { return reinterpret_cast<float*>(partials_.data()); }

  const HfConfig* config_ = nullptr;
  const DeviceWeights* weights_ = nullptr;
  DenseProducts* products_ = nullptr;
  CUstream_st* stream_ = nullptr;
  std::vector<int> place_;  // by layer: index among those of its kind, attention or delta nets
  std::vector<int64_t> channels_before_;  // by layer: key channels of earlier attention layers
  int widest_head_ = 0;

  // Buffers for all rows of a step.
  gpu::Buffer memory_;
  float* projected_ = nullptr;
  uint16_t* mixed_ = nullptr;
  uint16_t* q_latents_ = nullptr;      // [rows, q_rank]
  float* queries_ = nullptr;           // [rows, heads, nope_dim + rope_dim]
  uint16_t* nope_ = nullptr;           // [rows, heads, nope_dim]
  uint16_t* absorbed_ = nullptr;       // [rows, heads, LatentKeyDim]
  uint16_t* mixed_latents_ = nullptr;  // [rows, heads, kv_rank]
  float* convolved_ = nullptr;         // of delta nets, as DeltaNetArgs
  float* recurred_ = nullptr;          // likewise
  gpu::Buffer partials_;               // of decode attention
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_DEVICE_MIXERS_H_
