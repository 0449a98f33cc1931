// A layer's routing and activation and a strategy's rule as the kernels are told them.
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

/// The rule alone; nothing of the call.
ExpertCacheArgs MakeExpertCacheArgs(const RoutingRule& rule);

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_ROUTE_DEVICE_ROUTING_H_
