#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/group_gemm.h"
#include "kernels/cuda/primitives/element.cuh"
#include "kernels/cuda/route.h"

namespace moert::cuda {
namespace {

constexpr uint32_t kFull = 0xffffffffu;
constexpr int kGateTokens = 4;

/// A warp an expert, kGateTokens tokens at a time: the gate's row is read once for them. The order
/// of additions depends on the width alone.
template <typename T>
__global__ void __launch_bounds__(256)
    GateLogitsKernel(const T* x, int tokens, int hidden, int64_t stride, const float* gate,
                     int experts, float* logits) {
  const int expert = blockIdx.x * 8 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int first = blockIdx.y * kGateTokens;
  if (expert >= experts) return;
  const float* row = gate + static_cast<int64_t>(expert) * hidden;
  float sum[kGateTokens] = {};
  const T* at[kGateTokens];
#pragma unroll
  for (int t = 0; t < kGateTokens; ++t) at[t] = x + min(first + t, tokens - 1) * stride;
#pragma unroll 8
  for (int i = lane; i < hidden; i += 32) {
    const float g = row[i];
#pragma unroll
    for (int t = 0; t < kGateTokens; ++t) sum[t] = fmaf(g, ToFloat(at[t][i]), sum[t]);
  }
#pragma unroll
  for (int t = 0; t < kGateTokens; ++t) {
    const float total = WarpSum(sum[t]);
    if (lane == 0 && first + t < tokens) {
      logits[static_cast<int64_t>(first + t) * experts + expert] = total;
    }
  }
}

/// A warp a token; lane l holds experts l, l + 32, ...
__global__ void __launch_bounds__(128)
    TopKKernel(DeviceRouting routing, int tokens, float* logits, int32_t* ids, float* weights) {
  constexpr int kPerLane = kMaxExperts / 32;
  const int token = blockIdx.x * 4 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (token >= tokens) return;
  const int experts = routing.num_experts;
  float* row = logits + static_cast<int64_t>(token) * experts;
  float key[kPerLane];  // what is chosen by
  float score[kPerLane];
  float top = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    key[i] = e < experts ? row[e] : -INFINITY;
    top = fmaxf(top, key[i]);
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(kFull, top, d));
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    score[i] = lane + 32 * i < experts ? expf(key[i] - top) : 0.0f;
    sum += score[i];
  }
  sum = WarpSum(sum);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    score[i] /= sum;
    if (e < experts) row[e] = score[i];
    if (routing.kind == 0) key[i] = e < experts ? score[i] : -INFINITY;
  }
  float chosen_weight = 0;  // lane j keeps the j-th
  int chosen_id = 0;
  float total = 0;
  uint32_t taken = 0;
  for (int j = 0; j < routing.top_k; ++j) {
    float best = -INFINITY;
    int best_i = -1;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      // A key of NaN or -inf is taken last, so that k distinct experts always come out.
      if (lane + 32 * i < experts && !(taken >> i & 1) && (best_i < 0 || key[i] > best)) {
        best = key[i];
        best_i = i;
      }
    }
    int e = best_i < 0 ? 0x7fffffff : lane + 32 * best_i;
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
      const float other = __shfl_xor_sync(kFull, best, d);
      const int other_e = __shfl_xor_sync(kFull, e, d);
      const bool neither_less = !(other > best) && !(best > other);
      if (other_e != 0x7fffffff &&
          (e == 0x7fffffff || other > best || (neither_less && other_e < e))) {
        best = other;
        e = other_e;
      }
    }
    e = __shfl_sync(kFull, e, 0);  // NaNs could leave lanes in disagreement
    float w = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (lane + 32 * i == e) {
        taken |= 1u << i;
        w = score[i];
      }
    }
    w = __shfl_sync(kFull, w, e % 32);
    total += w;
    if (lane == j) {
      chosen_weight = w;
      chosen_id = e;
    }
  }
  if (lane < routing.top_k) {
    if (routing.kind == 1 || routing.renormalize) chosen_weight /= total;
    chosen_weight *= routing.scaling;
    const int64_t at = static_cast<int64_t>(token) * routing.top_k + lane;
    ids[at] = chosen_id;
    weights[at] = chosen_weight;
  }
}

/// A warp an expert walks all pairs: slots come out ascending with no sort and no atomics.
__global__ void __launch_bounds__(128)
    GroupKernel(const int32_t* ids, int pairs, int experts, int32_t* lists, int32_t* counts) {
  const int expert = blockIdx.x * 4 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (expert >= experts) return;
  int32_t* list = lists + static_cast<int64_t>(expert) * pairs;
  int count = 0;
#pragma unroll 4
  for (int base = 0; base < pairs; base += 32) {
    const int i = base + lane;
    const bool mine = i < pairs && ids[i] == expert;
    const uint32_t found = __ballot_sync(kFull, mine);
    if (mine) list[count + __popc(found & ((1u << lane) - 1))] = i;
    count += __popc(found);
  }
  if (lane == 0) counts[expert] = count;
}

__device__ int TaskUnit(const DeviceMatrix& m) {
  constexpr int kTaskOverhead = 4096;  // what a task costs beside its bytes, in bytes
  const int k64_bytes = m.packing == Packing::kBf16 ? 2048
                        : m.packing == Packing::kW8 ? 1024
                        : m.packing == Packing::kW4 ? 512
                        : m.packing == Packing::kW3 ? 384
                                                    : 256;
  return 2 * m.k64s * k64_bytes * (kGemmWarps / KSlices(m.k64s)) + kTaskOverhead;
}

/// One CTA: a thread an expert counts its tiles, a scan places them, threads write them.
__global__ void __launch_bounds__(kMaxExperts + 32)
    MakeTilesKernel(const __grid_constant__ MakeTilesArgs args) {
  __shared__ int warp_tiles[32];
  __shared__ int64_t warp_cost[2][32];
  const int e = threadIdx.x;
  const int lane = e % 32;
  const int warp = e / 32;
  const bool shared = e == args.experts;
  int count = 0;
  ExpertHandle handle{};
  if (e <= args.experts && args.wave.Has(e)) {
    handle = args.handles[e];
    if (handle.record != nullptr) count = shared ? args.tokens : args.counts[e];
  }
  const int tiles = (count + kTileTokens - 1) / kTileTokens;
  int tasks[2] = {}, unit[2] = {};
  if (tiles > 0) {
    const DeviceFormat& f = args.formats[handle.format];
    const int gate_rows = kGemmWarps / KSlices(f.gate.k64s);
    const int down_rows = kGemmWarps / KSlices(f.down.k64s);
    tasks[0] = (f.gate.row_blocks + gate_rows - 1) / gate_rows;
    tasks[1] = ((f.down.row_blocks + 1) / 2 + down_rows - 1) / down_rows;
    unit[0] = TaskUnit(f.gate);
    unit[1] = TaskUnit(f.down);
  }
  int64_t cost[2] = {int64_t{tasks[0]} * unit[0], int64_t{tasks[1]} * unit[1]};

  // Inclusive scans over experts, made exclusive.
  int tile_sum = tiles;
  int64_t cost_sum[2] = {tiles * cost[0], tiles * cost[1]};
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int t = __shfl_up_sync(kFull, tile_sum, d);
    const int64_t c0 = __shfl_up_sync(kFull, cost_sum[0], d);
    const int64_t c1 = __shfl_up_sync(kFull, cost_sum[1], d);
    if (lane >= d) {
      tile_sum += t;
      cost_sum[0] += c0;
      cost_sum[1] += c1;
    }
  }
  if (lane == 31) {
    warp_tiles[warp] = tile_sum;
    warp_cost[0][warp] = cost_sum[0];
    warp_cost[1][warp] = cost_sum[1];
  }
  __syncthreads();
  for (int w = 0; w < warp; ++w) {
    tile_sum += warp_tiles[w];
    cost_sum[0] += warp_cost[0][w];
    cost_sum[1] += warp_cost[1][w];
  }
  if (e == static_cast<int>(blockDim.x) - 1) {
    *args.table.num_tiles = tile_sum;
    *args.table.total[0] = cost_sum[0];
    *args.table.total[1] = cost_sum[1];
  }
  const int first = tile_sum - tiles;
  const int32_t* slots =
      shared ? args.shared_slots : args.lists + static_cast<int64_t>(e) * args.pairs;
  for (int i = 0; i < tiles; ++i) {
    const int at = first + i;
    args.table.tiles[at] = {handle.record, slots + i * kTileTokens,
                            static_cast<int32_t>(handle.format),
                            min(kTileTokens, count - i * kTileTokens)};
    for (int p = 0; p < 2; ++p) {
      args.table.cost[p][at] = cost_sum[p] - (tiles - i) * cost[p];
      args.table.tasks[p][at] = tasks[p];
      args.table.unit[p][at] = unit[p];
    }
  }
}

__global__ void IotaKernel(int32_t* first, int begin, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) first[i] = begin + i;
}

__global__ void UpdateTableKernel(ExpertHandle* table,
                                  const __grid_constant__ TableUpdates updates) {
  const int i = threadIdx.x;
  if (i < updates.count) table[updates.index[i]] = updates.handle[i];
}

template <typename T>
using Element = std::remove_const_t<std::remove_pointer_t<T>>;

}  // namespace

int LaunchGateLogits(const DeviceRows& x, const float* gate, int experts, float* logits,
                     CUstream_st* stream) {
  const dim3 grid((experts + 7) / 8, (x.rows + kGateTokens - 1) / kGateTokens);
  WithElement(x.dtype, [&](auto type) {
    using T = Element<decltype(type)>;
    GateLogitsKernel<T><<<grid, 256, 0, stream>>>(static_cast<const T*>(x.data), x.rows, x.cols,
                                                  x.stride, gate, experts, logits);
  });
  return cudaGetLastError();
}

int LaunchTopK(const DeviceRouting& routing, int tokens, float* logits, int32_t* ids,
               float* weights, CUstream_st* stream) {
  TopKKernel<<<(tokens + 3) / 4, 128, 0, stream>>>(routing, tokens, logits, ids, weights);
  return cudaGetLastError();
}

int LaunchGroup(const int32_t* ids, int pairs, int experts, int32_t* lists, int32_t* counts,
                CUstream_st* stream) {
  GroupKernel<<<(experts + 3) / 4, 128, 0, stream>>>(ids, pairs, experts, lists, counts);
  return cudaGetLastError();
}

int LaunchMakeTiles(const MakeTilesArgs& args, CUstream_st* stream) {
  const int threads = (args.experts + 1 + 31) / 32 * 32;
  MakeTilesKernel<<<1, threads, 0, stream>>>(args);
  return cudaGetLastError();
}

int LaunchIota(int32_t* first, int begin, int count, CUstream_st* stream) {
  IotaKernel<<<(count + 255) / 256, 256, 0, stream>>>(first, begin, count);
  return cudaGetLastError();
}

int LaunchUpdateTable(ExpertHandle* table, const TableUpdates& updates, CUstream_st* stream) {
  UpdateTableKernel<<<1, TableUpdates::kMax, 0, stream>>>(table, updates);
  return cudaGetLastError();
}

}  // namespace moert::cuda
