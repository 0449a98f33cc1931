#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/group_gemm.h"
#include "kernels/cuda/primitives/element.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/tile_matrix.cuh"
#include "kernels/cuda/primitives/top_k.cuh"
#include "kernels/cuda/prompt_gemm.h"
#include "kernels/cuda/route.h"

namespace moert::cuda {
namespace {

constexpr int kGateTokens = 4;
constexpr int kGateParts = 8;  // of the width, each summed by itself
constexpr int kManyGateRows = 256;
constexpr int kFewTokens = 64;  // up to here a CTA an expert, else a warp an expert
constexpr int kTileThreads = kMaxExperts + 32;

/// Sums of part `part` of an expert's logits for kGateTokens tokens, in every lane.
template <typename T>
__device__ __forceinline__ void GatePart(const float* row, const T* const (&at)[kGateTokens],
                                         int hidden, int part, float (&sum)[kGateTokens]) {
  const int width = (hidden + kGateParts - 1) / kGateParts;
  const int end = min(hidden, (part + 1) * width);
#pragma unroll
  for (int t = 0; t < kGateTokens; ++t) sum[t] = 0;
#pragma unroll 8
  for (int i = part * width + static_cast<int>(threadIdx.x) % 32; i < end; i += 32) {
    const float g = row[i];
#pragma unroll
    for (int t = 0; t < kGateTokens; ++t) sum[t] = fmaf(g, ToFloat(at[t][i]), sum[t]);
  }
#pragma unroll
  for (int t = 0; t < kGateTokens; ++t) sum[t] = WarpSum(sum[t]);
}

/// kGateTokens tokens at a time: the gate's row is read once for them. The order of additions
/// depends on the width alone: the parts, each by the lanes of one warp, are summed in order.
template <typename T, bool kCtaAnExpert>
__global__ void __launch_bounds__(256)
    GateLogitsKernel(const T* x, int tokens, int hidden, int64_t stride, const float* gate,
                     int experts, float* logits) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int expert = kCtaAnExpert ? static_cast<int>(blockIdx.x) : blockIdx.x * 8 + warp;
  const int first = blockIdx.y * kGateTokens;
  if (expert >= experts) return;
  const float* row = gate + static_cast<int64_t>(expert) * hidden;
  const T* at[kGateTokens];
#pragma unroll
  for (int t = 0; t < kGateTokens; ++t) at[t] = x + min(first + t, tokens - 1) * stride;
  float total[kGateTokens] = {};
  if constexpr (kCtaAnExpert) {
    __shared__ float parts[kGateParts][kGateTokens];
    GatePart(row, at, hidden, warp, total);
    if (lane == 0) {
#pragma unroll
      for (int t = 0; t < kGateTokens; ++t) parts[warp][t] = total[t];
    }
    __syncthreads();
    if (warp != 0) return;
#pragma unroll
    for (int t = 0; t < kGateTokens; ++t) {
      total[t] = parts[0][t];
      for (int p = 1; p < kGateParts; ++p) total[t] += parts[p][t];
    }
  } else {
    for (int p = 0; p < kGateParts; ++p) {
      float sum[kGateTokens];
      GatePart(row, at, hidden, p, sum);
#pragma unroll
      for (int t = 0; t < kGateTokens; ++t) total[t] = p == 0 ? sum[t] : total[t] + sum[t];
    }
  }
  if (lane != 0) return;
#pragma unroll
  for (int t = 0; t < kGateTokens; ++t) {
    if (first + t < tokens) logits[static_cast<int64_t>(first + t) * experts + expert] = total[t];
  }
}

/// The same sums, bit for bit, of many tokens: a warp takes kManyExperts experts by kManyTokens
/// tokens, so that few of its instructions are loads.
constexpr int kManyExperts = 2;
constexpr int kManyTokens = 16;
template <typename T>
__global__ void __launch_bounds__(256)
    ManyGateLogitsKernel(const T* x, int tokens, int hidden, int64_t stride, const float* gate,
                         int experts, float* logits) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int lane = threadIdx.x % 32;
  const int expert = (blockIdx.x * 8 + static_cast<int>(threadIdx.x) / 32) * kManyExperts;
  const int first = blockIdx.y * kManyTokens;
  if (expert >= experts) return;
  const float* rows[kManyExperts];
#pragma unroll
  for (int e = 0; e < kManyExperts; ++e) {
    rows[e] = gate + static_cast<int64_t>(min(expert + e, experts - 1)) * hidden;
  }
  const T* from = x + first * stride;
  const int last = min(kManyTokens, tokens - first) - 1;
  const int width = (hidden + kGateParts - 1) / kGateParts;
  float total[kManyExperts][kManyTokens];
#pragma unroll 1
  for (int p = 0; p < kGateParts; ++p) {
    const int end = min(hidden, (p + 1) * width);
    float sum[kManyExperts][kManyTokens] = {};
#pragma unroll 2
    for (int i = p * width + lane; i < end; i += 32) {
      float g[kManyExperts];
#pragma unroll
      for (int e = 0; e < kManyExperts; ++e) g[e] = rows[e][i];
#pragma unroll
      for (int t = 0; t < kManyTokens; ++t) {
        const float v = ToFloat(from[min(t, last) * stride + i]);
#pragma unroll
        for (int e = 0; e < kManyExperts; ++e) sum[e][t] = fmaf(g[e], v, sum[e][t]);
      }
    }
#pragma unroll
    for (int e = 0; e < kManyExperts; ++e) {
#pragma unroll
      for (int t = 0; t < kManyTokens; ++t) {
        const float part = WarpSum(sum[e][t]);
        total[e][t] = p == 0 ? part : total[e][t] + part;
      }
    }
  }
  if (lane != 0) return;
#pragma unroll
  for (int e = 0; e < kManyExperts; ++e) {
#pragma unroll
    for (int t = 0; t < kManyTokens; ++t) {
      if (expert + e < experts && t <= last) {
        logits[static_cast<int64_t>(first + t) * experts + expert + e] = total[e][t];
      }
    }
  }
}

/// One pick of sparsemixer: the highest logit not taken and its softmax weight among those that are
/// relatively close to it.
template <int kPerLane>
__device__ int SparseMixerPick(const DeviceRouting& routing, const float (&logit)[kPerLane],
                               int lane, uint32_t* taken, float* weight) {
  const uint32_t before = *taken;
  const int e = Highest(logit, before, routing.num_experts, lane);
  const float top = Take(logit, e, lane, taken);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane + 32 * i >= routing.num_experts || (before >> i & 1)) continue;
    const float distance = (top - logit[i]) / fmaxf(fabsf(logit[i]), top);
    // 0 / 0, a logit equal to a top of 0, counts as close.
    if (!(distance > routing.sparsemixer_threshold)) sum += expf(logit[i] - top);
  }
  *weight = 1 / WarpSum(sum);
  return e;
}

/// A warp a token; at most 32 kPerLane experts.
template <int kPerLane>
__global__ void __launch_bounds__(128)
    TopKKernel(const __grid_constant__ DeviceRouting routing, int tokens, float* logits,
               int32_t* ids, float* weights) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ float group_keys[4][32 * kPerLane], group_ranks[4][32 * kPerLane];
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
    score[i] = lane + 32 * i >= experts ? 0.0f
               : routing.kind == 2      ? 1 / (1 + expf(-key[i]))
                                        : expf(key[i] - top);
    sum += score[i];
  }
  sum = routing.kind == 2 ? 1.0f : WarpSum(sum);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    score[i] /= sum;
    if (e >= experts) continue;
    row[e] = score[i];
    if (routing.kind == 0 || routing.kind == 2) {
      key[i] = score[i] + (routing.selection_bias == nullptr ? 0.0f : routing.selection_bias[e]);
    }
  }
  if (routing.top_groups != routing.num_groups && (routing.kind == 0 || routing.kind == 2)) {
    const int warp = threadIdx.x / 32;
    MaskGroups(routing, key, lane, group_keys[warp], group_ranks[warp]);
  }
  float chosen_weight = 0;  // lane j keeps the j-th
  int chosen_id = 0;
  float total = 0;
  uint32_t taken = 0;
  for (int j = 0; j < routing.top_k; ++j) {
    float w = 0;
    int e;
    if (routing.kind == 3) {
      e = SparseMixerPick(routing, key, lane, &taken, &w);
    } else {
      e = Highest(key, taken, experts, lane);
      w = Take(score, e, lane, &taken);
    }
    total += w;
    if (lane == j) {
      chosen_weight = w;
      chosen_id = e;
    }
  }
  if (lane < routing.top_k) {
    // Sigmoids may all underflow; the published models guard the division like this.
    if (routing.kind == 1 || (routing.renormalize && routing.kind != 3)) {
      chosen_weight /= total + 1e-20f;
    }
    chosen_weight *= routing.scaling;
    const int64_t at = static_cast<int64_t>(token) * routing.top_k + lane;
    ids[at] = chosen_id;
    weights[at] = chosen_weight;
  }
}

__device__ void AddCall(SelectionTally* to, int slots, float mass) {
  SelectionTally t = *to;
  t.slots += slots;
  ++t.calls;
  t.mass += mass;
  *to = t;
}

/// Up to kChunk pairs: a warp an expert walks them all. Slots come out ascending with no sort and
/// no atomics; an expert's begin behind those of the ids below its own.
__global__ void __launch_bounds__(128)
    GroupFewKernel(const int32_t* ids, int pairs, int experts, SlotGroups groups,
                   const float* weights, SelectionTally* tally) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int expert = blockIdx.x * 4 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (expert >= experts) return;
  int first = 0;
#pragma unroll 4
  for (int base = 0; base < pairs; base += 32) {
    const int i = base + lane;
    const int id = i < pairs ? ids[i] : -1;
    first += __popc(__ballot_sync(kFull, id >= 0 && id < expert));
  }
  int count = 0;
  float mass = 0;
#pragma unroll 4
  for (int base = 0; base < pairs; base += 32) {
    const int i = base + lane;
    const bool mine = i < pairs && ids[i] == expert;
    const uint32_t found = __ballot_sync(kFull, mine);
    if (mine) {
      groups.sorted[first + count + __popc(found & ((1u << lane) - 1))] = i;
      if (tally != nullptr) mass += weights[i];
    }
    count += __popc(found);
  }
  if (lane == 0) {
    groups.firsts[expert] = first;
    groups.counts[expert] = count;
  }
  if (tally == nullptr) return;
  mass = WarpSum(mass);
  if (lane != 0) return;
  if (count > 0) AddCall(tally + expert, count, mass);
  if (expert == 0) AddCall(tally + experts, pairs, 0);
}

constexpr int kChunk = 1024;  // pairs that a CTA places
constexpr int kChunkWarps = kChunk / 32;

/// A warp an expert adds what it was given in this call.
__global__ void __launch_bounds__(128) TallyKernel(SlotGroups groups, int pairs, int experts,
                                                   const float* weights, SelectionTally* tally) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int expert = blockIdx.x * 4 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (expert >= experts) return;
  const int first = groups.firsts[expert], count = groups.counts[expert];
  float mass = 0;
  for (int i = lane; i < count; i += 32) mass += weights[groups.sorted[first + i]];
  mass = WarpSum(mass);
  if (lane != 0) return;
  if (count > 0) AddCall(tally + expert, count, mass);
  if (expert == 0) AddCall(tally + experts, pairs, 0);
}

/// Counts each chunk's experts.
__global__ void __launch_bounds__(256)
    CountChunkKernel(const int32_t* ids, int pairs, int experts, int32_t* chunks) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ int counts[kMaxExperts];
  for (int e = threadIdx.x; e < experts; e += 256) counts[e] = 0;
  __syncthreads();
  const int begin = blockIdx.x * kChunk;
  const int end = min(pairs, begin + kChunk);
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += 256) {
    const int e = ids[i];
    if (e >= 0 && e < experts) atomicAdd(counts + e, 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += 256) {
    chunks[static_cast<int64_t>(blockIdx.x) * experts + e] = counts[e];
  }
}

/// A CTA places a chunk's slots behind those of the chunks before it. A thread a pair: its rank in
/// the warp by a match, then behind those of the warps before it. Slots of an expert come out
/// ascending.
__global__ void __launch_bounds__(kChunk)
    GroupKernel(const int32_t* ids, int pairs, int experts, SlotGroups groups) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ uint16_t before[kChunkWarps][kMaxExperts];  // of an expert, in the warps before
  __shared__ int places[kMaxExperts];
  __shared__ int totals[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int in_use = (min(pairs - static_cast<int>(blockIdx.x) * kChunk, kChunk) + 31) / 32;
  for (int w = 0; w < in_use; ++w) {
    for (int e = threadIdx.x; e < experts; e += static_cast<int>(blockDim.x)) before[w][e] = 0;
  }
  __syncthreads();
  const int at = static_cast<int>(blockIdx.x) * kChunk + static_cast<int>(threadIdx.x);
  const int mine = at < pairs && warp < in_use ? ids[at] : -1;
  const bool placed = mine >= 0 && mine < experts;
  const uint32_t alike = __match_any_sync(kFull, mine);
  const int rank = __popc(alike & ((1u << lane) - 1));
  if (placed && rank == 0) before[warp][mine] = static_cast<uint16_t>(__popc(alike));
  __syncthreads();
  const int e = threadIdx.x;
  int here = 0, all = 0, ahead = 0;
  if (e < experts) {
    for (int w = 0; w < in_use; ++w) {
      const int count = before[w][e];
      before[w][e] = static_cast<uint16_t>(here);
      here += count;
    }
#pragma unroll 8
    for (int c = 0; c < static_cast<int>(gridDim.x); ++c) {
      const int count = groups.chunks[static_cast<int64_t>(c) * experts + e];
      all += count;
      if (c < static_cast<int>(blockIdx.x)) ahead += count;
    }
  }
  int sum = all;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(kFull, sum, d);
    if (lane >= d) sum += other;
  }
  if (lane == 31) totals[warp] = sum;
  __syncthreads();
  int first = sum - all;
  for (int w = 0; w < warp && w * 32 < experts; ++w) first += totals[w];
  if (e < experts) {
    places[e] = first + ahead;
    if (blockIdx.x == 0) {
      groups.firsts[e] = first;
      groups.counts[e] = all;
    }
  }
  __syncthreads();
  if (placed) groups.sorted[places[mine] + before[warp][mine] + rank] = at;
}

/// What an item costs, in bytes of bf16 that take as long: the bytes it reads, or the instructions
/// where products of few bits are bound by them.
__device__ int ItemCost(const TileMatrix& m, int tokens) {
  constexpr int kItem = 3000;
  const bool many = tokens > 8;
  int k64 = 0;
  switch (m.packing) {
    case Packing::kBf16:
      k64 = many ? 4300 : 4096;
      break;
    case Packing::kW8:
    case Packing::kF8:
      k64 = many ? 2400 : 2150;
      break;
    case Packing::kW8A8:
      k64 = 2100;
      break;
    case Packing::kW4:
      k64 = many ? 1250 : 1100;
      break;
    case Packing::kW3:
      k64 = many ? 1500 : 1350;
      break;
    case Packing::kW2:
      k64 = many ? 1150 : 850;
      break;
    case Packing::kW4A8:
      k64 = 1100;
      break;
  }
  return m.k64s * k64 + kItem;
}

/// Where share `cta` of `ctas` equal shares of the work begins. cost: up to and with each tile.
__device__ Position StartOf(const Tile* tiles, const int64_t* cost, int num_tiles, int product,
                            int cta, int ctas) {
  if (num_tiles == 0) return {0, 0};
  const int64_t target = cost[num_tiles - 1] * cta / ctas;
  int low = 0, high = num_tiles;  // the first tile that ends behind the target
  while (low < high) {
    const int middle = (low + high) / 2;
    if (cost[middle] > target) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (low == num_tiles) return {num_tiles, 0};
  const int64_t before = low == 0 ? 0 : cost[low - 1];
  const int64_t items = tiles[low].matrix[product].items;
  const auto item = static_cast<int>(((target - before) * items + (cost[low] - before) - 1) /
                                     (cost[low] - before));
  return item >= items ? Position{low + 1, 0} : Position{low, item};
}

/// One CTA: a thread an expert counts its tiles, a scan places them, threads write them; then a
/// thread a CTA of the products finds its share.
__global__ void __launch_bounds__(kTileThreads)
    MakeTilesKernel(const __grid_constant__ MakeTilesArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
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
    if (handle.record != nullptr) count = shared ? args.tokens : args.groups.counts[e];
  }
  if (args.prompt_packings != 0 && count > 0 &&
      IsPromptFormat(args.formats[handle.format], args.prompt_packings)) {
    count = 0;
  }
  const int tiles = (count + kTileTokens - 1) / kTileTokens;
  Tile tile{};
  int64_t cost[2] = {}, last_cost[2] = {};
  if (tiles > 0) {
    const DeviceFormat& f = args.formats[handle.format];
    tile.matrix[0] = ResolveMatrix(handle.record, f.gate, &f.up);
    tile.matrix[1] = ResolveMatrix(handle.record, f.down, nullptr);
    // Of a tile that is full; the last may cost less.
    for (int p = 0; p < 2; ++p) {
      cost[p] = int64_t{tile.matrix[p].items} * ItemCost(tile.matrix[p], min(count, kTileTokens));
      last_cost[p] = int64_t{tile.matrix[p].items} *
                     ItemCost(tile.matrix[p], count - (tiles - 1) * kTileTokens);
    }
  }

  // Inclusive scans over experts, made exclusive.
  int tile_sum = tiles;
  int64_t cost_sum[2];
  for (int p = 0; p < 2; ++p) cost_sum[p] = max(tiles - 1, 0) * cost[p] + last_cost[p];
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
  int num_tiles = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) {
    if (w == warp) {
      tile_sum += num_tiles;
    }
    num_tiles += warp_tiles[w];
    if (w < warp) {
      cost_sum[0] += warp_cost[0][w];
      cost_sum[1] += warp_cost[1][w];
    }
  }
  if (e < 2) args.table.ticket[e] = 0;
  const int first = tile_sum - tiles;
  const int32_t* slots = shared      ? args.shared_slots
                         : tiles > 0 ? args.groups.sorted + args.groups.firsts[e]
                                     : nullptr;
  for (int i = 0; i < tiles; ++i) {
    const int at = first + i;
    tile.slots = slots + i * kTileTokens;
    tile.count = min(kTileTokens, count - i * kTileTokens);
    args.table.tiles[at] = tile;
    args.table.ready[at] = 0;
    for (int p = 0; p < 2; ++p) {
      args.table.cost[p][at] =
          i == tiles - 1 ? cost_sum[p] : cost_sum[p] - last_cost[p] - (tiles - 2 - i) * cost[p];
    }
  }
  __syncthreads();
  for (int cta = e; cta <= args.shares; cta += static_cast<int>(blockDim.x)) {
    for (int p = 0; p < 2; ++p) {
      args.table.starts[p][cta] =
          StartOf(args.table.tiles, args.table.cost[p], num_tiles, p, cta, args.shares);
    }
  }
}

__global__ void IotaKernel(int32_t* first, int begin, int count) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) first[i] = begin + i;
}

__global__ void UpdateTableKernel(ExpertHandle* table,
                                  const __grid_constant__ TableUpdates updates) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int i = threadIdx.x;
  if (i < updates.count) table[updates.index[i]] = updates.handle[i];
}

template <typename T>
using Element = std::remove_const_t<std::remove_pointer_t<T>>;

}  // namespace

int LaunchGateLogits(const DeviceRows& x, const float* gate, int experts, float* logits,
                     CUstream_st* stream) {
  const bool few = x.rows <= kFewTokens;
  const dim3 grid(few ? experts : (experts + 7) / 8, (x.rows + kGateTokens - 1) / kGateTokens);
  int error = 0;
  WithElement(x.dtype, [&](auto type) {
    using T = Element<decltype(type)>;
    if (x.rows >= kManyGateRows) {
      constexpr int kCtaExperts = 8 * kManyExperts;
      const dim3 many((experts + kCtaExperts - 1) / kCtaExperts,
                      (x.rows + kManyTokens - 1) / kManyTokens);
      error =
          LaunchEarly(ManyGateLogitsKernel<T>, many, 256, 0, stream, static_cast<const T*>(x.data),
                      x.rows, x.cols, x.stride, gate, experts, logits);
      return;
    }
    const auto kernel = few ? GateLogitsKernel<T, true> : GateLogitsKernel<T, false>;
    error = LaunchEarly(kernel, grid, 256, 0, stream, static_cast<const T*>(x.data), x.rows, x.cols,
                        x.stride, gate, experts, logits);
  });
  return error;
}

int LaunchTopK(const DeviceRouting& routing, int tokens, float* logits, int32_t* ids,
               float* weights, CUstream_st* stream) {
  const auto kernel = routing.num_experts <= 64    ? TopKKernel<2>
                      : routing.num_experts <= 128 ? TopKKernel<4>
                      : routing.num_experts <= 256 ? TopKKernel<8>
                                                   : TopKKernel<kMaxExperts / 32>;
  return LaunchEarly(kernel, (tokens + 3) / 4, 128, 0, stream, routing, tokens, logits, ids,
                     weights);
}

int LaunchGroup(const int32_t* ids, int pairs, int experts, const SlotGroups& groups,
                CUstream_st* stream, const float* weights, SelectionTally* tally) {
  const int warps4 = (experts + 3) / 4;
  if (pairs <= kChunk) {
    return LaunchEarly(GroupFewKernel, warps4, 128, 0, stream, ids, pairs, experts, groups, weights,
                       tally);
  }
  const auto chunks = static_cast<int>(GroupChunks(pairs));
  int error =
      LaunchEarly(CountChunkKernel, chunks, 256, 0, stream, ids, pairs, experts, groups.chunks);
  if (error == 0) {
    error = LaunchEarly(GroupKernel, chunks, kChunk, 0, stream, ids, pairs, experts, groups);
  }
  if (error != 0 || tally == nullptr) return error;
  return LaunchEarly(TallyKernel, warps4, 128, 0, stream, groups, pairs, experts, weights, tally);
}

int LaunchMakeTiles(const MakeTilesArgs& args, CUstream_st* stream) {
  const int threads = (args.experts + 1 + 31) / 32 * 32;
  return LaunchEarly(MakeTilesKernel, 1, threads, 0, stream, args);
}

int LaunchIota(int32_t* first, int begin, int count, CUstream_st* stream) {
  return LaunchEarly(IotaKernel, (count + 255) / 256, 256, 0, stream, first, begin, count);
}

int LaunchUpdateTable(ExpertHandle* table, const TableUpdates& updates, CUstream_st* stream) {
  return LaunchEarly(UpdateTableKernel, 1, TableUpdates::kMax, 0, stream, table, updates);
}

}  // namespace moert::cuda
