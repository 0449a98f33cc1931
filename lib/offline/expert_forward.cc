#include "offline/expert_forward.h"

#include <cstdint>
#include <memory>

namespace moert::offline {
namespace {

/// False: the CPU is to do it.
bool ForwardOn(OfflineDevice* device, const MoeLayerSpec& layer, const ExpertMatrices& weights,
               int64_t rows, Floats* x) {
  const std::unique_ptr<DeviceExpert> expert = device->Expert(layer, rows);
  return expert != nullptr && expert->Run(weights, x->data()).ok() &&
         expert->Outputs(x->data()).ok();
}

}  // namespace

absl::Status ForwardExpert(const MoeLayerSpec& layer, const ExpertMatrices& weights,
                           const Compute& compute, OfflineDevice* device, Floats* x) {
  const int64_t rows = static_cast<int64_t>(x->size()) / layer.hidden;
  if (device != nullptr && ForwardOn(device, layer, weights, rows, x)) return absl::OkStatus();
  const Floats h = GluForward(compute, layer, weights.gate, weights.up, x->data(), rows);
  MatMul(compute, weights.down, layer.hidden, layer.intermediate, h.data(), rows, x->data());
  return absl::OkStatus();
}

}  // namespace moert::offline
