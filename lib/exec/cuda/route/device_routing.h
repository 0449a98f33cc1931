// Translates a layer's routing, its activation and a strategy's rule into kernel arguments.
#ifndef MOERT_LIB_EXEC_CUDA_ROUTE_DEVICE_ROUTING_H_
#define MOERT_LIB_EXEC_CUDA_ROUTE_DEVICE_ROUTING_H_

#include "kernels/cuda/route/expert_cache.h"
#include "kernels/cuda/route/route.h"
#include "moert/policy.h"

namespace moert::cuda {

/// selection_bias: on the device, or null.
DeviceRouting MakeDeviceRouting(const RoutingSpec& spec, int num_experts,
                                const float* selection_bias);

constexpr DeviceFunction DeviceFunctionOf(Activation function) {
  return static_cast<DeviceFunction>(function);
}
DeviceActivation MakeDeviceActivation(const ExpertActivation& activation);

/// Fills in the rule's parameters only, not the call's.
ExpertCacheArgs MakeExpertCacheArgs(const RoutingRule& rule);

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_ROUTE_DEVICE_ROUTING_H_
