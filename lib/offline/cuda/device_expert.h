// DeviceExpert on a CUDA device.
#ifndef MOERT_LIB_OFFLINE_CUDA_DEVICE_EXPERT_H_
#define MOERT_LIB_OFFLINE_CUDA_DEVICE_EXPERT_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "exec/cuda/cuda_api.h"
#include "moert/model.h"
#include "offline/cuda/gptq_rounding.h"
#include "offline/cuda/lanes.h"
#include "offline/device_expert.h"

namespace moert::offline {

struct ExpertLane : LaneStream {
  cuda::Buffer run;      // weights, inputs and what Run makes of them
  cuda::Buffer changes;  // besides: other weights, and what comes of them
  cuda::Buffer inputs;   // of SetInputs
  cuda::Buffer moments;
  GptqRoom gptq;
};

/// `returned` takes the lane back, with the first error if there was one.
std::unique_ptr<DeviceExpert> MakeDeviceExpert(
    int device, const MoeLayerSpec& layer, int64_t rows, ExpertLane* lane,
    std::function<void(const absl::Status& status)> returned);

/// The device memory that an expert with this many tokens needs.
int64_t DeviceExpertBytes(const MoeLayerSpec& layer, int64_t rows);

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_CUDA_DEVICE_EXPERT_H_
