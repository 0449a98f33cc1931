// Choosing experts within a warp: lane l holds the values of the kPerLane experts l, l + 32, ...
#ifndef MOERT_KERNELS_CUDA_ROUTE_TOP_K_CUH_
#define MOERT_KERNELS_CUDA_ROUTE_TOP_K_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/route/route.h"

namespace moert::cuda {

constexpr uint32_t kFull = 0xffffffffu;
constexpr int kNoExpert = 0x7fffffff;

/// Maps keys to integers of the same order: -0 and 0 are equal, NaN is below all others, and no key
/// becomes 0.
__device__ __forceinline__ uint32_t OrderOf(float key) {
  const uint32_t bits = __float_as_uint(key + 0.0f);
  const uint32_t order = bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
  return key == key ? order : 1u;
}

/// The expert with the highest key among those of all lanes, of equal keys the lower index; lane l
/// holds experts l, l + 32, ..., bit i of `taken` rules out its i-th. A key of NaN is taken last,
/// so that distinct experts always come out.
template <int kPerLane>
__device__ __forceinline__ int Highest(const float (&key)[kPerLane], uint32_t taken, int experts,
                                       int lane) {
  uint32_t best = 0;
  int e = kNoExpert;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane + 32 * i >= experts || (taken >> i & 1)) continue;
    const uint32_t order = OrderOf(key[i]);
    if (order > best) {
      best = order;
      e = lane + 32 * i;
    }
  }
  const uint32_t top = __reduce_max_sync(kFull, best);
  return __reduce_min_sync(kFull, best == top ? e : kNoExpert);
}

/// The value of expert e, broadcast from the lane that holds it, where it is marked as taken.
template <int kPerLane>
__device__ float Take(const float (&value)[kPerLane], int e, int lane, uint32_t* taken) {
  float v = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane + 32 * i == e) {
      *taken |= 1u << i;
      v = value[i];
    }
  }
  return __shfl_sync(kFull, v, e % 32);
}

/// Keys of experts outside the best groups become -inf. keys, ranks: scratch of the warp.
template <int kPerLane>
__device__ void MaskGroups(const DeviceRouting& routing, float (&key)[kPerLane], int lane,
                           float* keys, float* ranks) {
  const int experts = routing.num_experts;
  const int size = experts / routing.num_groups;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane + 32 * i < experts) keys[lane + 32 * i] = key[i];
  }
  __syncwarp();
  for (int g = lane; g < routing.num_groups; g += 32) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = 0; i < size; ++i) {
      const float v = keys[g * size + i];
      if (v > first) {
        second = first;
        first = v;
      } else if (v > second) {
        second = v;
      }
    }
    ranks[g] = routing.kind != DeviceRoutingKind::kSoftmaxTopK && size > 1 ? first + second : first;
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    if (e >= experts) continue;
    const int g = e / size;
    const float mine = ranks[g];
    int ahead = 0;
    for (int other = 0; other < routing.num_groups; ++other) {
      ahead += ranks[other] > mine || (other < g && !(mine > ranks[other]));
    }
    if (ahead >= routing.top_groups) key[i] = -INFINITY;
  }
}

/// The rank of a lane's pair among the warp's pairs of the same expert, found by a match. Writes
/// the warp's number of pairs of each expert to `counts` ([experts], zeros before); SumWarps turns
/// these into ranks within a chunk of pairs. id: an expert, or -1: no pair.
__device__ __forceinline__ int RankInWarp(int id, uint16_t* counts) {
  const uint32_t alike = __match_any_sync(kFull, id);
  const int rank = __popc(alike & ((1u << (threadIdx.x % 32)) - 1));
  if (id >= 0 && rank == 0) counts[id] = static_cast<uint16_t>(__popc(alike));
  return rank;
}

/// Turns an expert's counts ([warps, experts]) into sums over the warps before. Returns the total.
__device__ __forceinline__ int SumWarps(uint16_t* counts, int warps, int experts, int e) {
  constexpr int kAtOnce = 8;
  int sum = 0;
  for (int first = 0; first < warps; first += kAtOnce) {
    int count[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      count[i] = first + i < warps ? counts[(first + i) * experts + e] : 0;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < warps) counts[(first + i) * experts + e] = static_cast<uint16_t>(sum);
      sum += count[i];
    }
  }
  return sum;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_ROUTE_TOP_K_CUH_
