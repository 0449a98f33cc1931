// The order in which rows of a checkpoint's matrices are loaded, so that kernels know one order.
#ifndef MOERT_EXAMPLES_HOST_CUDA_CHANNEL_ORDER_H_
#define MOERT_EXAMPLES_HOST_CUDA_CHANNEL_ORDER_H_

#include <cstdint>
#include <vector>

#include "moert/offline/rope_config.h"

namespace moert::host {

/// The channels of a head of queries or keys, such that a rotation's pairs are half a head apart
/// and those that stay are behind those that turn. Attention does not see it: scores are sums over
/// channels. Empty: as they are.
std::vector<int64_t> RotationOrder(const RopeConfig& rope, int64_t head_dim);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_CHANNEL_ORDER_H_
