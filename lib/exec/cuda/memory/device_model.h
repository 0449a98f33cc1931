// The parts of a model that are always on a device: gates, biases, shared experts, the formats of
// its records.
#ifndef MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_MODEL_H_
#define MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_MODEL_H_

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "exec/backend.h"
#include "exec/cuda/cuda_api.h"
#include "kernels/cuda/device_types.h"
#include "kernels/cuda/route/route.h"

namespace moert::cuda {

struct LayerOnDevice {
  const float* gate = nullptr;
  const float* selection_bias = nullptr;
  const float* logit_bias = nullptr;
  const float* expert_scales = nullptr;
  const int32_t* hash_experts = nullptr;
  const float* shared_gate = nullptr;
  const std::byte* shared_record = nullptr;  // null: no shared expert
  int64_t shared_format = 0;
  int64_t first_handle = 0;  // row in the residency table; a layer's last is the shared expert's
  DeviceRouting routing;
  DeviceActivation activation;
};

class DeviceModel {
 public:
  /// Copies constants and formats to the current device. `token_ids`: device memory that will hold
  /// the token ids of a call; null: no layer is routed by token ids.
  absl::Status Init(const ExecutorParts& parts, const int32_t* token_ids = nullptr,
                    ActivationNumerics numerics = ActivationNumerics::kBF16);

  const LayerOnDevice& layer(int l) const { return layers_[l]; }
  const DeviceFormat* formats() const {
    return reinterpret_cast<const DeviceFormat*>(formats_memory_.data());
  }
  int num_formats() const { return num_formats_; }
  /// The index into formats() for a layout of the source.
  int64_t FormatOf(const RecordLayout* layout) const { return format_of_.at(layout); }

 private:
  absl::Status PlaceConstants(const ExecutorParts& parts, const int32_t* token_ids, Carver* carver,
                              bool copy);
  absl::Status PlaceFormats(const ExecutorParts& parts, ActivationNumerics numerics);

  Buffer constants_memory_, formats_memory_;
  int num_formats_ = 0;
  std::vector<LayerOnDevice> layers_;
  std::unordered_map<const RecordLayout*, int64_t> format_of_;
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_MEMORY_DEVICE_MODEL_H_
