// The order in which rows of a checkpoint's matrices are loaded, so that kernels need only one.
#ifndef MOERT_EXAMPLES_HOST_CUDA_CHANNEL_ORDER_H_
#define MOERT_EXAMPLES_HOST_CUDA_CHANNEL_ORDER_H_

#include <cstdint>
#include <vector>

#include "moert/offline/rope_config.h"

namespace moert::host {

/// Orders the channels of a query or key head such that the pairs of a rotation are half a head
/// apart and unrotated channels follow the rotated ones. Attention scores do not change, as they
/// are sums over channels. Empty: the checkpoint's order.
std::vector<int64_t> RotationOrder(const RopeConfig& rope, int64_t head_dim);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_CHANNEL_ORDER_H_
