// Flash decoding on tensor cores: up to 8 query heads that share keys are the columns of a product.
// A warp takes 16 keys at a time; 8 blocks of 4 warps share a piece of the keys of one query row.
// If there is one piece, these blocks are a cluster and combine their results; otherwise, and
// before sm_90, a second kernel does. Queries and probabilities are sums of two bf16.
#include <algorithm>

#include "host/cuda/attention_kernel.h"
#include "host/cuda/decode_found.cuh"
#include "host/cuda/decode_panel.cuh"
#include "host/cuda/decode_rotate.cuh"
#include "host/cuda/decode_shared.cuh"
#include "host/cuda/mma.cuh"
#include "host/cuda/reduce.cuh"
#include "util/launch.cuh"

namespace moert::host {
namespace {

using gpu::GridDependencySync;
using gpu::LaunchEarly;
using gpu::TriggerDependentLaunch;
using namespace decode;

template <int kDim>
__device__ __forceinline__ void LoadQueries(const AttentionArgs& a, const Task& t, float scale,
                                            Shared<kDim>* shared) {
  const float* q =
      a.queries + t.row * a.query_stride + static_cast<int64_t>(t.first_head) * a.head_dim;
  for (int i = threadIdx.x; i < t.heads * a.head_dim; i += kThreads) {
    PutQuery(shared, i / a.head_dim, i % a.head_dim, __fmul_rn(__ldcg(q + i), scale));
  }
}

/// Writes this row's key and value to the cache if `stores`.
template <int kDim>
__device__ __forceinline__ void StoreKey(const AttentionArgs& a, const Task& t,
                                         const SequenceCache& cache, bool stores,
                                         const Shared<kDim>& shared) {
  const int64_t stored = (a.channels_before + t.kv_head * a.head_dim) * cache.capacity +
                         int64_t{t.input.position} * a.head_dim;
  const int before = t.input.before;
  for (int i = threadIdx.x; i < a.head_dim; i += kThreads) {
    const uint16_t key = shared.in.keys[before][i], value = shared.in.values[before][i];
    if (!stores) continue;
    cache.keys[stored + i] = key;
    cache.values[stored + i] = value;
  }
}

template <int kSteps>
__device__ __forceinline__ void Scores(const Panel<kSteps>& keys, const Shared<kSteps * 32>& shared,
                                       float (&score)[4]) {
  const int lane = threadIdx.x % 32, head = lane / 4, d = lane % 4 * 8;
  float low[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) score[i] = 0;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const auto query = [&](int part) {
      return *reinterpret_cast<const uint4*>(&shared.in.queries[part][head][d + s * 32]);
    };
    MultiplyEight(score, keys.low[s], keys.high[s], query(0));
    MultiplyEight(low, keys.low[s], keys.high[s], query(1));
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) score[i] += low[i];
}

/// Combines the results of the warps, in their order.
template <int kSteps>
__device__ __forceinline__ void AddWarps(Mix<kSteps>& mix, Shared<kSteps * 32>* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = lane % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) {
      mix.sum[h] += __shfl_xor_sync(0xffffffffu, mix.sum[h], lanes);
    }
    if (lane < 4) shared->by_warp[warp][head + h] = {mix.highest[h], mix.sum[h]};
  }
  __syncthreads();
  float weight[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    Found all = {-INFINITY, 0};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      all.highest = fmaxf(all.highest, shared->by_warp[w][head + h].highest);
    }
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const Found part = shared->by_warp[w][head + h];
      all.sum = __fmaf_rn(WeightOf(part, all.highest), part.sum, all.sum);
    }
    weight[h] = WeightOf({mix.highest[h], mix.sum[h]}, all.highest);
    if (warp == 0 && lane < 4) shared->found[head + h] = all;
  }
#pragma unroll
  for (int t = 0; t < 2 * kSteps; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      shared->mixed[warp][head + i % 2][Mix<kSteps>::ChannelOf(t, i / 2)] =
          weight[i % 2] * mix.mixed[t][i];
    }
  }
  __syncthreads();
}

/// The block's sum of a head's channel.
template <int kDim>
__device__ __forceinline__ float MixedOf(const Shared<kDim>& shared, int head, int d) {
  static_assert(kWarps == 4);
  return (shared.mixed[0][head][d] + shared.mixed[1][head][d]) +
         (shared.mixed[2][head][d] + shared.mixed[3][head][d]);
}

/// Combines the results of the cluster's blocks: each block sends its result of a head to the block
/// that combines this head.
template <int kDim>
__device__ __forceinline__ void AddCluster(const AttentionArgs& a, const Task& t, int rank,
                                           bool stores, Shared<kDim>* shared) {
  static_assert(kHeads == kRanks);
  const int dim = a.head_dim;
  for (int head = 0; head < t.heads; ++head) {
    for (int d = threadIdx.x; d < dim; d += kThreads) {
      StoreTo(&shared->received[rank][d], head, MixedOf(*shared, head, d));
    }
  }
  if (threadIdx.x < t.heads) {
    const Found& found = shared->found[threadIdx.x];
    StoreTo(&shared->received_found[rank].highest, threadIdx.x, found.highest);
    StoreTo(&shared->received_found[rank].sum, threadIdx.x, found.sum);
  }
  ClusterArrive();
  ClusterWait();
  if (rank >= t.heads) return;
  uint16_t* const out = a.out + (t.row * a.heads + t.first_head + rank) * dim;
  const float sink = SinkOf(a, t.first_head + rank);
  for (int d = threadIdx.x; d < dim; d += kThreads) {
    const float value = Combine(
        kRanks, sink, [&](int r) { return shared->received_found[r]; },
        [&](int r) { return shared->received[r][d]; });
    if (stores) out[d] = ToBf16(value);
  }
}

template <int kDim>
__device__ __forceinline__ void StorePartials(const AttentionArgs& a, const Task& t, int pieces,
                                              float* partials, const Shared<kDim>& shared) {
  const int part = blockIdx.x;
  for (int i = threadIdx.x; i < t.heads * a.head_dim; i += kThreads) {
    const int head = i / a.head_dim, d = i % a.head_dim;
    const Partials to = PartialsOf(partials, a, pieces * kRanks, t.row, t.first_head + head);
    to.mixed[part * a.head_dim + d] = MixedOf(shared, head, d);
    if (d == 0) to.found[part] = shared.found[head];
  }
}

/// Zeros the queries, for heads and channels that do not exist.
template <int kDim>
__device__ __forceinline__ void ClearQueries(Shared<kDim>* shared) {
  constexpr int kPieces = sizeof(shared->in.queries) / sizeof(uint4);
  auto* const to = reinterpret_cast<uint4*>(shared->in.queries);
  for (int i = threadIdx.x; i < kPieces; i += kThreads) to[i] = make_uint4(0, 0, 0, 0);
}

/// Keys of a warp, from `from` on; those before `stored` are in the cache, at `base`.
struct Keys {
  int64_t base;
  int from, stored;
};

template <int kSteps>
__device__ __forceinline__ Mix<kSteps> Attend(const AttentionArgs& a, const Task& t,
                                              const SequenceCache& cache, const Keys& of, int end,
                                              Panel<kSteps>& keys, Panel<kSteps>& values,
                                              const Shared<kSteps * 32>& shared) {
  const int dim = a.head_dim;
  Mix<kSteps> mix;
  for (int from = of.from; from < end;) {
    if (from + kBlock > t.fresh) {
      keys.Refresh(shared.in.keys, dim, from, t.fresh, t.end);
      values.Refresh(shared.in.values, dim, from, t.fresh, t.end);
    }
    float score[4];
    uint32_t high[2], low[2];
    Scores(keys, shared, score);
    const int next = from + kStride;
    keys.Load(cache.keys + of.base, dim, next, t.begin, of.stored);
    mix.Weigh(score, from, t.begin, t.end, high, low);
    mix.AddValues(values, high, low);
    values.Load(cache.values + of.base, dim, next, t.begin, of.stored);
    from = next;
  }
  return mix;
}

/// kSteps: of 32 channels each. partials: null for a cluster. rehearses: runs the whole kernel once
/// before the products are ready, without storing anything, so that its code is cached; fetching
/// the code takes longer than running it.
template <int kSteps, bool kRotates>
__global__ void __launch_bounds__(kThreads)
    DecodeKernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ RopeArgs rope,
                 int pieces, float* partials, bool rehearses) {
  constexpr int kDim = kSteps * 32;
  __shared__ Shared<kDim> shared;
  const int rank = static_cast<int>(blockIdx.x) % kRanks, warp = threadIdx.x / 32;
  if (partials == nullptr) ClusterArrive();  // others store to this block once all have arrived
  // Not written by this step's kernels: the step's row inputs and the cache entries of earlier
  // steps.
  if (!kRotates) GridDependencySync();
  const Task t = TaskOf(a, kRotates);
  const SequenceCache cache = a.inputs.sequences[t.input.sequence];
  const float scale = rsqrtf(static_cast<float>(a.head_dim)) * 1.44269504f;  // for base-2 scores
  std::conditional_t<kRotates, DecodeRotation<kDim>, NoRotation> rotation(rope, t, cache.rope_set);
  Keys of;
  of.base = (a.channels_before + t.kv_head * a.head_dim) * cache.capacity;
  of.from = t.begin / kPieceKeys * kPieceKeys + (rank + kRanks * warp) * kBlock;
  while (of.from + kBlock <= t.begin) of.from += kStride;
  of.stored = min(t.end, t.fresh);
  if (partials == nullptr) ClusterWait();

#pragma unroll 1
  for (int pass = kRotates && rehearses ? 0 : 1; pass < 2; ++pass) {
    const bool real = pass == 1;
    Panel<kSteps> keys, values;
    keys.Load(cache.keys + of.base, a.head_dim, of.from, t.begin, of.stored);
    values.Load(cache.values + of.base, a.head_dim, of.from, t.begin, of.stored);
    ClearQueries(&shared);
    __syncthreads();
    if constexpr (kRotates) {
      if (real) GridDependencySync();
      rotation.Run(rope, t, cache.rope_set, scale, &shared);
    } else {
      LoadQueries(a, t, scale, &shared);
    }
    __syncthreads();
    // Not earlier: the next kernel would load its weights ahead of the loads above.
    if (real) TriggerDependentLaunch();
    if (kRotates && blockIdx.x == 0 && t.first_head % (a.heads / a.kv_heads) == 0) {
      StoreKey(a, t, cache, real, shared);
    }
    const int end = real ? t.end : min(t.end, of.from + 1);
    Mix<kSteps> mix = Attend(a, t, cache, of, end, keys, values, shared);
    AddWarps(mix, &shared);
    if (partials == nullptr) {
      AddCluster(a, t, rank, real, &shared);
    } else if (real) {
      StorePartials(a, t, pieces, partials, shared);
    }
  }
}

/// One block per (row, head).
__global__ void CombineKernel(const __grid_constant__ AttentionArgs a, int parts, float* partials) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t row = blockIdx.x;
  const int head = blockIdx.y;
  const Partials from = PartialsOf(partials, a, parts, row, head);
  for (int d = threadIdx.x; d < a.head_dim; d += blockDim.x) {
    const float value = Combine(
        parts, SinkOf(a, head), [&](int i) { return from.found[i]; },
        [&](int i) { return from.mixed[i * a.head_dim + d]; });
    a.out[(row * a.heads + head) * a.head_dim + d] = ToBf16(value);
  }
}

template <bool kRotates>
int Launch(const AttentionArgs& a, const RopeArgs& rope, int pieces, float* partials,
           CUstream_st* stream) {
  if (a.head_dim % 16 != 0 || a.head_dim > kMaxHeadDim) {
    return static_cast<int>(cudaErrorInvalidValue);
  }
  // A window or chunk spans at most this many pieces, wherever it begins.
  const int span = std::max(a.window, a.chunk);
  if (span > 0) pieces = std::min(pieces, (span + kPieceKeys - 2) / kPieceKeys + 1);
  const int per_kv = a.heads / a.kv_heads;
  const dim3 grid(kRanks * pieces, a.kv_heads * ((per_kv + kHeads - 1) / kHeads), a.rows);
  // If all blocks run at once, they have time to rehearse before the products are ready.
  const bool rehearses = static_cast<int64_t>(grid.x) * grid.y * grid.z <=
                         gpu::DeviceAttribute(cudaDevAttrMultiProcessorCount);
  const auto kernel = a.head_dim <= 32    ? DecodeKernel<1, kRotates>
                      : a.head_dim <= 64  ? DecodeKernel<2, kRotates>
                      : a.head_dim <= 96  ? DecodeKernel<3, kRotates>
                      : a.head_dim <= 128 ? DecodeKernel<4, kRotates>
                                          : DecodeKernel<8, kRotates>;
  // Leaves room beside the products, which are launched before and take the rest of the memory.
  int error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared);
  if (error != 0) return error;
  if (pieces == 1 && gpu::HasClusters()) {
    return gpu::LaunchClusterEarly(kernel, grid, kRanks, kThreads, 0, stream, a, rope, pieces,
                                   static_cast<float*>(nullptr), rehearses);
  }
  error = LaunchEarly(kernel, grid, kThreads, 0, stream, a, rope, pieces, partials, rehearses);
  if (error != 0) return error;
  return LaunchEarly(CombineKernel, dim3(a.rows, a.heads), a.head_dim <= 64 ? 64 : 128, 0, stream,
                     a, pieces * kRanks, partials);
}

}  // namespace

int64_t PartialBytes(int64_t rows, int heads, int head_dim, int pieces) {
  return rows * heads * pieces * kRanks * (head_dim + 2) * static_cast<int64_t>(sizeof(float));
}

int LaunchDecodeAttention(const AttentionArgs& args, int pieces, float* partials,
                          CUstream_st* stream) {
  return Launch<false>(args, {}, pieces, partials, stream);
}

int LaunchDecodeAttention(const RotatedAttention& args, int pieces, float* partials,
                          CUstream_st* stream) {
  if (!RotatesInDecode(args.rope)) return static_cast<int>(cudaErrorInvalidValue);
  return Launch<true>(args.args, args.rope, pieces, partials, stream);
}

}  // namespace moert::host
