#include "host/cuda/channel_order.h"

#include <cstddef>

namespace moert::host {

std::vector<int64_t> RotationOrder(const RopeConfig& rope, int64_t head_dim) {
  if (rope.dim == head_dim && !rope.interleaved) return {};
  const int64_t half = head_dim / 2, turning = rope.dim / 2;
  std::vector<int64_t> order(static_cast<size_t>(head_dim));
  for (int64_t i = 0; i < half; ++i) {
    const bool halves = i < turning && !rope.interleaved;
    order[static_cast<size_t>(i)] = halves ? i : 2 * i;
    order[static_cast<size_t>(half + i)] = halves ? turning + i : 2 * i + 1;
  }
  return order;
}

}  // namespace moert::host
