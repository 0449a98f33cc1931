// Flash decoding by tensor cores: up to 8 query heads that share keys are the columns of a product.
// A warp takes 16 keys at a time; 8 blocks of 4 warps share a piece of the keys of one query row.
// Where there is one piece they are a cluster that adds up what its blocks found; else, and before
// sm_90, a second kernel does. Queries and probabilities are sums of two bf16.
#include <algorithm>

#include "host/cuda/attention_kernel.h"
#include "host/cuda/decode_found.cuh"
#include "host/cuda/decode_panel.cuh"
#include "host/cuda/mma.cuh"
#include "host/cuda/reduce.cuh"
#include "host/cuda/rotate_head.cuh"
#include "util/launch.cuh"

namespace moert::host {
namespace {

using gpu::GridDependencySync;
using gpu::LaunchEarly;
using gpu::TriggerDependentLaunch;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kRanks = 8;                          // blocks that share a piece
constexpr int kHeads = 8;                          // query heads of a block
constexpr int kBlock = 16;                         // keys of a warp at a time
constexpr int kStride = kRanks * kWarps * kBlock;  // from a warp's keys to its next
static_assert(kPieceKeys % kStride == 0);

template <int kDim>
struct Shared {
  static constexpr int kRow = kDim + 32;            // no two rows of a fragment in one bank
  __align__(16) uint16_t queries[2][kHeads][kRow];  // high and low parts
  // Keys and values of the step's own rows of the sequence, rounded as the cache is.
  __align__(16) uint16_t keys[kDecodeRows][kDim], values[kDecodeRows][kDim];
  union {
    float products[kHeads + 2][kDim];  // of the queries, the key and the value of a row
    float mixed[2][kHeads][kDim + 1];  // later, in two parts
  };
  Found by_warp[kWarps][kHeads];
  Found found[kHeads];
  Rotation rotation;
};

/// A block's part of the work.
struct Task {
  int kv_head, first_head, heads;
  int64_t row;
  RowInput input;
  int begin, end;  // keys: of the piece, and the window
  int fresh;       // first key that is in shared memory
};

__device__ __forceinline__ Task TaskOf(const AttentionArgs& a, bool rotates) {
  Task t;
  const int per_kv = a.heads / a.kv_heads;
  const int groups = (per_kv + kHeads - 1) / kHeads;
  const int group = static_cast<int>(blockIdx.y) % groups;
  t.kv_head = static_cast<int>(blockIdx.y) / groups;
  t.first_head = t.kv_head * per_kv + group * kHeads;
  t.heads = min(kHeads, (t.kv_head + 1) * per_kv - t.first_head);
  const int piece = static_cast<int>(blockIdx.x) / kRanks;
  t.row = blockIdx.z;
  t.input = a.inputs.rows[t.row];
  t.end = t.input.position + 1;
  const int first = a.window > 0 && t.end > a.window ? t.end - a.window : 0;
  const int from = (first / kPieceKeys + piece) * kPieceKeys;
  t.begin = max(from, first);
  t.end = min(from + kPieceKeys, t.end);
  t.fresh = rotates ? t.input.position - t.input.before : t.input.position + 1;
  return t;
}

/// Two parts of a query's channel, in powers of two.
template <int kDim>
__device__ __forceinline__ void PutQuery(Shared<kDim>* shared, int head, int i, float v) {
  const uint16_t high = ToBf16(v);
  shared->queries[0][head][i] = high;
  shared->queries[1][head][i] = ToBf16(v - FromBf16(high));
}

template <int kDim>
__device__ __forceinline__ void LoadQueries(const AttentionArgs& a, const Task& t, float scale,
                                            Shared<kDim>* shared) {
  const float* q =
      a.queries + t.row * a.query_stride + static_cast<int64_t>(t.first_head) * a.head_dim;
  for (int i = threadIdx.x; i < t.heads * a.head_dim; i += kThreads) {
    PutQuery(shared, i / a.head_dim, i % a.head_dim, __fmul_rn(__ldcg(q + i), scale));
  }
}

/// Of a row: the channels of the key, the value and, if `queries`, the block's heads.
template <int kDim>
__device__ __forceinline__ void LoadProducts(const AttentionArgs& a, const RopeArgs& rope,
                                             const Task& t, int64_t row, bool queries,
                                             Shared<kDim>* shared) {
  const int dim = a.head_dim;
  const float* x = rope.qkv + row * (a.heads + 2 * a.kv_heads) * dim;
  const int first = queries ? 0 : t.heads * dim, all = (t.heads + 2) * dim;
  constexpr int kTogether = 10;  // of a thread under way
  for (int from = first; from < all; from += kTogether * kThreads) {
    float v[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int i = from + j * kThreads + static_cast<int>(threadIdx.x), head = i / dim;
      const int place = head < t.heads    ? t.first_head + head
                        : head == t.heads ? a.heads + t.kv_head
                                          : a.heads + a.kv_heads + t.kv_head;
      v[j] = i < all ? Channel(rope, x, place * dim + i % dim) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int i = from + j * kThreads + static_cast<int>(threadIdx.x);
      if (i < all) shared->products[i / dim][i % dim] = v[j];
    }
  }
}

/// Rotates the queries, and keys of the step's rows up to this one; if `write`, stores its own. The
/// rotation of the first of these rows has been made, without a barrier.
template <int kDim>
__device__ __forceinline__ void Rotate(const AttentionArgs& a, const RopeArgs& rope, const Task& t,
                                       const SequenceCache& cache, float scale, bool write,
                                       Shared<kDim>* shared) {
  const int dim = a.head_dim, warp = threadIdx.x / 32, before = t.input.before;
  for (int j = 0; j <= before; ++j) {
    if (j > 0) {
      __syncthreads();
      MakeRotation(rope, cache.rope_set, t.input.position - before + j, &shared->rotation);
    }
    LoadProducts(a, rope, t, t.row - before + j, j == before, shared);
    __syncthreads();
    for (int i = threadIdx.x; i < dim; i += kThreads) {
      shared->values[j][i] = ToBf16(shared->products[t.heads + 1][i]);
    }
    // The key, and behind the step's other rows the queries.
    for (int head = warp; head <= t.heads; head += kWarps) {
      const auto get = [&](int i) { return shared->products[head][i]; };
      if (head == t.heads) {
        RotateHead(rope, rope.k_weight, shared->rotation, get,
                   [&](int i, float v) { shared->keys[j][i] = ToBf16(v); });
      } else if (j == before) {
        RotateHead(rope, rope.q_weight, shared->rotation, get,
                   [&](int i, float v) { PutQuery(shared, head, i, __fmul_rn(v, scale)); });
      }
    }
  }
  __syncthreads();
  if (!write) return;
  const int64_t stored =
      ((static_cast<int64_t>(a.layer) * a.kv_heads + t.kv_head) * cache.capacity +
       t.input.position) *
      dim;
  for (int i = threadIdx.x; i < dim; i += kThreads) {
    cache.keys[stored + i] = shared->keys[before][i];
    cache.values[stored + i] = shared->values[before][i];
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
      return *reinterpret_cast<const uint4*>(&shared.queries[part][head][d + s * 32]);
    };
    MultiplyEight(score, keys.low[s], keys.high[s], query(0));
    MultiplyEight(low, keys.low[s], keys.high[s], query(1));
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) score[i] += low[i];
}

/// Adds up what the warps found, in their order.
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
  // Two warps store, two add.
  static_assert(kWarps == 4);
  float(&to)[kHeads][kSteps * 32 + 1] = shared->mixed[warp % 2];
  float before[2 * kSteps][4] = {};
#pragma unroll
  for (int turn = 0; turn < 2; ++turn) {
    if (warp / 2 == turn) {
#pragma unroll
      for (int t = 0; turn > 0 && t < 2 * kSteps; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          before[t][i] = to[head + i % 2][Mix<kSteps>::ChannelOf(t, i / 2)];
        }
      }
#pragma unroll
      for (int t = 0; t < 2 * kSteps; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          to[head + i % 2][Mix<kSteps>::ChannelOf(t, i / 2)] =
              __fmaf_rn(weight[i % 2], mix.mixed[t][i], before[t][i]);
        }
      }
    }
    __syncthreads();
  }
}

/// Adds up what the blocks of the cluster found; each stores a part of the channels.
template <int kDim>
__device__ __forceinline__ void AddCluster(const AttentionArgs& a, const Task& t, int rank,
                                           const Shared<kDim>& shared) {
  ClusterSync();
  for (int i = rank * kThreads + threadIdx.x; i < t.heads * a.head_dim; i += kRanks * kThreads) {
    const int head = i / a.head_dim, d = i % a.head_dim;
    Found found[kRanks];
    float mixed[kRanks];
#pragma unroll
    for (int r = 0; r < kRanks; ++r) {
      found[r] = {LoadOf(&shared.found[head].highest, r), LoadOf(&shared.found[head].sum, r)};
      mixed[r] = LoadOf(&shared.mixed[0][head][d], r) + LoadOf(&shared.mixed[1][head][d], r);
    }
    const float value = Combine(
        kRanks, [&](int r) { return found[r]; }, [&](int r) { return mixed[r]; });
    a.out[(t.row * a.heads + t.first_head) * a.head_dim + i] = ToBf16(value);
  }
  ClusterSync();  // its memory is read by others until here
}

template <int kDim>
__device__ __forceinline__ void StorePartials(const AttentionArgs& a, const Task& t, int pieces,
                                              float* partials, const Shared<kDim>& shared) {
  const int part = blockIdx.x;
  for (int i = threadIdx.x; i < t.heads * a.head_dim; i += kThreads) {
    const int head = i / a.head_dim, d = i % a.head_dim;
    const Partials to = PartialsOf(partials, a, pieces * kRanks, t.row, t.first_head + head);
    to.mixed[part * a.head_dim + d] = shared.mixed[0][head][d] + shared.mixed[1][head][d];
    if (d == 0) to.found[part] = shared.found[head];
  }
}

/// kSteps: 32 channels each. partials: null for a cluster.
template <int kSteps, bool kRotates>
__global__ void __launch_bounds__(kThreads)
    DecodeKernel(const __grid_constant__ AttentionArgs a, const __grid_constant__ RopeArgs rope,
                 int pieces, float* partials) {
  constexpr int kDim = kSteps * 32;
  __shared__ Shared<kDim> shared;
  const int dim = a.head_dim, rank = static_cast<int>(blockIdx.x) % kRanks;
  const int warp = threadIdx.x / 32;
  // What a step's rows are, and what earlier steps stored, no kernel of this step writes.
  if (!kRotates) GridDependencySync();
  const Task t = TaskOf(a, kRotates);
  const SequenceCache cache = a.inputs.sequences[t.input.sequence];
  const int64_t base =
      (static_cast<int64_t>(a.layer) * a.kv_heads + t.kv_head) * cache.capacity * dim;
  const float scale = rsqrtf(static_cast<float>(dim)) * 1.44269504f;  // scores in powers of two

  int from = t.begin / kPieceKeys * kPieceKeys + (rank + kRanks * warp) * kBlock;
  while (from + kBlock <= t.begin) from += kStride;
  const int stored = min(t.end, t.fresh);  // keys in the cache
  Panel<kSteps> keys, values;
  keys.Load(cache.keys + base, dim, from, t.begin, stored);
  values.Load(cache.values + base, dim, from, t.begin, stored);
  // Heads and channels that there are not: zeros.
  for (int i = threadIdx.x; i < 2 * kHeads * Shared<kDim>::kRow; i += kThreads) {
    (&shared.queries[0][0][0])[i] = 0;
  }
  if (kRotates) {
    MakeRotation(rope, cache.rope_set, t.input.position - t.input.before, &shared.rotation);
    GridDependencySync();
    const bool write = blockIdx.x == 0 && t.first_head % (a.heads / a.kv_heads) == 0;
    Rotate(a, rope, t, cache, scale, write, &shared);
  } else {
    __syncthreads();
    LoadQueries(a, t, scale, &shared);
    __syncthreads();
  }
  // Not before: the next product's weights would be in front of these loads.
  TriggerDependentLaunch();

  Mix<kSteps> mix;
  while (from < t.end) {
    if (kRotates && from + kBlock > t.fresh) {
      keys.Refresh(shared.keys, dim, from, t.fresh, t.end);
      values.Refresh(shared.values, dim, from, t.fresh, t.end);
    }
    float score[4];
    uint32_t high[2], low[2];
    Scores(keys, shared, score);
    const int next = from + kStride;
    keys.Load(cache.keys + base, dim, next, t.begin, stored);
    mix.Weigh(score, from, t.begin, t.end, high, low);
    mix.AddValues(values, high, low);
    values.Load(cache.values + base, dim, next, t.begin, stored);
    from = next;
  }
  AddWarps(mix, &shared);
  if (partials == nullptr) {
    AddCluster(a, t, rank, shared);
  } else {
    StorePartials(a, t, pieces, partials, shared);
  }
}

/// A block a (row, head).
__global__ void CombineKernel(const __grid_constant__ AttentionArgs a, int parts, float* partials) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t row = blockIdx.x;
  const int head = blockIdx.y;
  const Partials from = PartialsOf(partials, a, parts, row, head);
  for (int d = threadIdx.x; d < a.head_dim; d += blockDim.x) {
    const float value = Combine(
        parts, [&](int i) { return from.found[i]; },
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
  // A window lies in so many pieces, wherever it begins.
  if (a.window > 0) pieces = std::min(pieces, (a.window + kPieceKeys - 2) / kPieceKeys + 1);
  const int per_kv = a.heads / a.kv_heads;
  const dim3 grid(kRanks * pieces, a.kv_heads * ((per_kv + kHeads - 1) / kHeads), a.rows);
  const auto kernel = a.head_dim <= 32    ? DecodeKernel<1, kRotates>
                      : a.head_dim <= 64  ? DecodeKernel<2, kRotates>
                      : a.head_dim <= 96  ? DecodeKernel<3, kRotates>
                      : a.head_dim <= 128 ? DecodeKernel<4, kRotates>
                                          : DecodeKernel<8, kRotates>;
  // Room beside the products, which take the rest of the shared memory and are launched before.
  int error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared);
  if (error != 0) return error;
  if (pieces == 1 && gpu::HasClusters()) {
    return gpu::LaunchClusterEarly(kernel, grid, kRanks, kThreads, 0, stream, a, rope, pieces,
                                   static_cast<float*>(nullptr));
  }
  error = LaunchEarly(kernel, grid, kThreads, 0, stream, a, rope, pieces, partials);
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
  if (args.rope.norm_full && args.rope.q_weight != nullptr) {
    return static_cast<int>(cudaErrorInvalidValue);
  }
  return Launch<true>(args.args, args.rope, pieces, partials, stream);
}

}  // namespace moert::host
