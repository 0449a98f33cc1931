// The outputs of an unquantized expert, on the CPU or a device.
#ifndef MOERT_LIB_OFFLINE_EXPERT_FORWARD_H_
#define MOERT_LIB_OFFLINE_EXPERT_FORWARD_H_

#include "absl/status/status.h"
#include "moert/model.h"
#include "offline/expert_mlp.h"
#include "offline/offline_device.h"

namespace moert::offline {

/// Turns x [rows, hidden] into the expert's outputs. `device` may be null.
absl::Status ForwardExpert(const MoeLayerSpec& layer, const ExpertMatrices& weights,
                           const Compute& compute, OfflineDevice* device, Floats* x);

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_EXPERT_FORWARD_H_
