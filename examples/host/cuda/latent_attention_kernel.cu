// A block takes some query rows with all their heads, side by side: all see the same keys. Scores
// go through shared memory, so that of the mixed latents, too wide for a warp's registers, each
// warp keeps some channels of all queries.
#include <algorithm>

#include "host/cuda/decode_found.cuh"
#include "host/cuda/first_key.cuh"
#include "host/cuda/latent_attention_kernel.h"
#include "host/cuda/mma.cuh"
#include "host/cuda/reduce.cuh"
#include "util/launch.cuh"

namespace moert::host {
namespace {

using gpu::GridDependencySync;
using gpu::LaunchEarly;
using gpu::TriggerDependentLaunch;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kColumns = 64;  // of the mixed latents, a warp
static_assert(kWarps * kColumns == kMaxLatentValueDim);
constexpr int kPadding = 8;  // no two rows of a fragment in one bank

/// A block's form: kTiles times 16 queries, kKeys keys at a time, of which kStages are in shared
/// memory.
template <int kTiles_, int kKeys_, int kStages_>
struct Form {
  static constexpr int kTiles = kTiles_, kKeys = kKeys_, kStages = kStages_;
  static constexpr int kQueries = kTiles * 16;
  static constexpr int kRow = kKeys + kPadding;                // of scores and of probabilities
  static constexpr int kLanes = kThreads / kQueries;           // of a query's softmax
  static constexpr int kOfLane = kKeys / kLanes;               // keys of each
  static constexpr int kOfWarp = kTiles * kKeys / 8 / kWarps;  // products of 16 queries and 8 keys
  static_assert(kOfWarp >= 1 && kLanes <= 32 && kWarps % kTiles == 0);

  static constexpr int64_t Bytes(int64_t key_dim) {
    return (kQueries + kStages * kKeys) * (key_dim + kPadding) * 2 + kQueries * kRow * 6 +
           kQueries * int64_t{3 * 4};
  }
};
using Wide = Form<4, 32, 2>;
using Narrow = Form<1, 64, 2>;
using Small = Form<1, 64, 1>;  // where a block has less than 100 KiB

/// What a block has in shared memory.
template <typename F>
struct Memory {
  uint16_t *queries, *keys;  // [kQueries], [kStages][kKeys] rows of `stride`
  int stride;
  float (*scores)[F::kRow];
  uint16_t (*weights)[F::kRow];  // bf16
  float* shrink;                 // [kQueries]
  Found* found;                  // [kQueries]

  __device__ __forceinline__ Memory(unsigned char* at, int key_dim) : stride(key_dim + kPadding) {
    queries = reinterpret_cast<uint16_t*>(at);
    keys = queries + F::kQueries * stride;
    scores = reinterpret_cast<float(*)[F::kRow]>(keys + F::kStages * F::kKeys * stride);
    weights = reinterpret_cast<uint16_t(*)[F::kRow]>(scores + F::kQueries);
    shrink = reinterpret_cast<float*>(weights + F::kQueries);
    found = reinterpret_cast<Found*>(shrink + F::kQueries);
  }
};

/// A block's part of the work: pairs of a row and a head, side by side in memory, and keys.
struct Task {
  int64_t first_pair;  // of the step
  int first, pairs;    // of the unit of rows
  int position;        // of the unit's first row
  int begin, end;      // keys
};

/// Keys of a part of what a query at `position` may see.
__device__ __forceinline__ int PartKeys(int position) {
  int keys = kLatentPartKeys;
  while (keys * kLatentParts <= position) keys *= 2;
  return keys;
}

template <typename F>
__device__ __forceinline__ void LoadQueries(const LatentAttentionArgs& a, const Task& t,
                                            const Memory<F>& memory) {
  const int pieces = a.key_dim / 8;
  for (int i = threadIdx.x; i < F::kQueries * pieces; i += kThreads) {
    const int query = i / pieces, d = i % pieces * 8;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (query < t.pairs) {
      v = *reinterpret_cast<const uint4*>(a.queries + (t.first_pair + query) * a.key_dim + d);
    }
    *reinterpret_cast<uint4*>(memory.queries + query * memory.stride + d) = v;
  }
}

/// Begins to copy keys [from, from + kKeys), of which those from `end` on are zeros.
template <typename F>
__device__ __forceinline__ void CopyKeys(const LatentAttentionArgs& a, const uint16_t* keys,
                                         int from, int end, uint16_t* to, int stride) {
  const int pieces = a.key_dim / 8;
  for (int i = threadIdx.x; i < F::kKeys * pieces; i += kThreads) {
    const int key = i / pieces, d = i % pieces * 8;
    const bool inside = from + key < end;
    CopyAsync(SharedAddress(to + key * stride + d),
              inside ? keys + static_cast<int64_t>(from + key) * a.key_dim + d : keys,
              inside ? 16 : 0);
  }
  CommitCopies();
}

/// Queries times keys, each warp some, to memory.scores.
template <typename F>
__device__ __forceinline__ void Scores(const LatentAttentionArgs& a, const Memory<F>& memory,
                                       const uint16_t* keys) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int tile = warp % F::kTiles * 16, first = warp / F::kTiles;
  constexpr int kBetween = kWarps / F::kTiles;
  float sums[2][F::kOfWarp][4] = {};  // two, so that one product need not wait for the one before
  const uint16_t* q = memory.queries + (tile + lane % 16) * memory.stride + lane / 16 * 8;
  const uint16_t* k = keys + (first * 8 + lane % 8) * memory.stride + lane / 8 % 2 * 8;
  const auto multiply = [&](int step, float(&sum)[F::kOfWarp][4]) {
    uint32_t part[4];
    LoadMatrix(q + step * 16, part);
#pragma unroll
    for (int j = 0; j < F::kOfWarp; ++j) {
      uint32_t b0, b1;
      LoadColumns(k + j * kBetween * 8 * memory.stride + step * 16, &b0, &b1);
      Multiply(sum[j], part, b0, b1);
    }
  };
  const int steps = a.key_dim / 16;
#pragma unroll 2
  for (int step = 0; step < steps / 2; ++step) {
    multiply(2 * step, sums[0]);
    multiply(2 * step + 1, sums[1]);
  }
  if (steps % 2 != 0) multiply(steps - 1, sums[0]);
#pragma unroll
  for (int j = 0; j < F::kOfWarp; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      memory
          .scores[tile + lane / 4 + i / 2 * 8][(first + j * kBetween) * 8 + lane % 4 * 2 + i % 2] =
          sums[0][j][i] + sums[1][j][i];
    }
  }
}

/// A query's running softmax, by kLanes lanes; `sum` is that of a lane's keys.
struct Softmax {
  float highest = -INFINITY, sum = 0;

  /// Keys [low, end) of those from `from` on become weights, the others zeros.
  template <typename F>
  __device__ __forceinline__ void Weigh(const Memory<F>& memory, float scale, int from, int low,
                                        int end) {
    const int query = threadIdx.x / F::kLanes, lane = threadIdx.x % F::kLanes;
    float score[F::kOfLane], now = highest;
#pragma unroll
    for (int j = 0; j < F::kOfLane; ++j) {
      const int at = lane + j * F::kLanes, key = from + at;
      const bool seen = key >= low && key < end;
      score[j] = seen ? memory.scores[query][at] * scale : -INFINITY;
      now = fmaxf(now, score[j]);
    }
#pragma unroll
    for (int lanes = F::kLanes / 2; lanes > 0; lanes /= 2) {
      now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, lanes));
    }
    const float shrink = highest == -INFINITY ? 0.0f : exp2f(highest - now);
    highest = now;
    sum *= shrink;
#pragma unroll
    for (int j = 0; j < F::kOfLane; ++j) {
      const float weight = score[j] == -INFINITY ? 0.0f : exp2f(score[j] - now);
      sum += weight;
      memory.weights[query][lane + j * F::kLanes] = ToBf16(weight);
    }
    if (lane == 0) memory.shrink[query] = shrink;
  }

  template <typename F>
  __device__ __forceinline__ void Store(const Memory<F>& memory) const {
    float total = sum;
#pragma unroll
    for (int lanes = F::kLanes / 2; lanes > 0; lanes /= 2) {
      total += __shfl_xor_sync(0xffffffffu, total, lanes);
    }
    if (threadIdx.x % F::kLanes == 0) memory.found[threadIdx.x / F::kLanes] = {highest, total};
  }
};

/// What a warp has mixed: kColumns channels of all queries.
template <typename F>
struct Mixed {
  float sums[F::kTiles][kColumns / 8][4] = {};

  static __device__ __forceinline__ int FirstColumn() {
    return static_cast<int>(threadIdx.x) / 32 * kColumns;
  }

  __device__ __forceinline__ void Add(const Memory<F>& memory, const uint16_t* keys,
                                      int value_dim) {
    const int lane = threadIdx.x % 32;
    if (FirstColumn() >= value_dim) return;
#pragma unroll
    for (int t = 0; t < F::kTiles; ++t) {
      const float* const shrink = memory.shrink + t * 16 + lane / 4;
      const float by[2] = {shrink[0], shrink[8]};
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[t][n][i] *= by[i / 2];
      }
    }
#pragma unroll
    for (int k = 0; k < F::kKeys / 16; ++k) {
      uint32_t weights[F::kTiles][4];
#pragma unroll
      for (int t = 0; t < F::kTiles; ++t) {
        LoadMatrix(&memory.weights[t * 16 + lane % 16][k * 16 + lane / 16 * 8], weights[t]);
      }
      const uint16_t* const row = keys + (k * 16 + lane % 16) * memory.stride + FirstColumn();
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        if (FirstColumn() + n * 8 >= value_dim) break;
        uint32_t b0, b1;
        LoadTransposed(row + n * 8, &b0, &b1);
#pragma unroll
        for (int t = 0; t < F::kTiles; ++t) Multiply(sums[t][n], weights[t], b0, b1);
      }
    }
  }

  /// put(query, channel, two sums).
  template <typename Put>
  __device__ __forceinline__ void ForEach(int value_dim, Put put) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < F::kTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const int channel = FirstColumn() + n * 8 + lane % 4 * 2;
        if (channel >= value_dim) break;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          put(t * 16 + lane / 4 + half * 8, channel, sums[t][n][2 * half],
              sums[t][n][2 * half + 1]);
        }
      }
    }
  }
};

struct LatentPartials {
  Found* found;  // [parts]
  float* mixed;  // [parts][value_dim]
};
__device__ __forceinline__ LatentPartials PartialsOf(float* partials, int64_t pair, int parts,
                                                     int value_dim) {
  float* const at = partials + pair * parts * (value_dim + 2);
  return {reinterpret_cast<Found*>(at), at + 2 * parts};
}

/// Walks over the task's keys.
template <typename F>
__device__ __forceinline__ void Attend(const LatentAttentionArgs& a, const Task& t,
                                       const SequenceCache& cache, const Memory<F>& memory,
                                       Mixed<F>* mixed) {
  const uint16_t* const keys = cache.keys + a.layer * cache.capacity * a.key_dim;
  const auto stage = [&](int i) { return memory.keys + i % F::kStages * F::kKeys * memory.stride; };
  const auto copy = [&](int i) {
    CopyKeys<F>(a, keys, t.begin + i * F::kKeys, t.end, stage(i), memory.stride);
  };
  const float scale = a.scale * 1.44269504f;
  const int query = threadIdx.x / F::kLanes;
  const int position = t.position + (t.first + query) / a.heads;
  const int low = max(t.begin, FirstKey(a.window, a.chunk, position));
  const int end = query < t.pairs ? min(t.end, position + 1) : 0;
  Softmax softmax;
  const int steps = (t.end - t.begin + F::kKeys - 1) / F::kKeys;
  if (F::kStages > 1) copy(0);
  for (int i = 0; i < steps; ++i) {
    if (F::kStages == 1) {
      copy(i);
    } else if (i + 1 < steps) {
      copy(i + 1);
    } else {
      CommitCopies();
    }
    WaitForCopies<F::kStages - 1>();
    __syncthreads();
    Scores(a, memory, stage(i));
    __syncthreads();
    softmax.Weigh(memory, scale, t.begin + i * F::kKeys, low, end);
    __syncthreads();
    mixed->Add(memory, stage(i), a.value_dim);
    __syncthreads();
  }
  softmax.Store(memory);
  __syncthreads();
}

/// partials: null for the rows of tiles, by all their keys; else a row's part of them.
template <typename F>
__global__ void __launch_bounds__(kThreads)
    LatentKernel(const __grid_constant__ LatentAttentionArgs a, int parts, float* partials) {
  extern __shared__ __align__(16) unsigned char memory_of_block[];
  TriggerDependentLaunch();
  GridDependencySync();
  QueryTile tile{static_cast<int32_t>(blockIdx.y), 1};
  if (partials == nullptr) tile = a.inputs.tiles[blockIdx.y];
  const RowInput row = a.inputs.rows[tile.first_row];
  Task t;
  t.first = blockIdx.x * F::kQueries;
  t.pairs = min(F::kQueries, tile.rows * a.heads - t.first);
  if (t.pairs <= 0) return;
  t.first_pair = static_cast<int64_t>(tile.first_row) * a.heads + t.first;
  t.position = row.position;
  t.begin = FirstKey(a.window, a.chunk, row.position + t.first / a.heads) / 16 * 16;
  t.end = row.position + (t.first + t.pairs - 1) / a.heads + 1;
  if (partials != nullptr) {
    const int keys = PartKeys(row.position), from = static_cast<int>(blockIdx.z) * keys;
    t.begin = max(t.begin, from);
    t.end = min(t.end, from + keys);
    if (from > row.position) return;  // CombineLatents asks for none of it
  }
  const Memory<F> memory(memory_of_block, a.key_dim);
  LoadQueries(a, t, memory);
  Mixed<F> mixed;
  Attend(a, t, a.inputs.sequences[row.sequence], memory, &mixed);
  if (partials == nullptr) {
    mixed.ForEach(a.value_dim, [&](int query, int channel, float first, float second) {
      if (query >= t.pairs) return;
      const float scale = 1.0f / memory.found[query].sum;
      *reinterpret_cast<uint32_t*>(a.out + (t.first_pair + query) * a.value_dim + channel) =
          ToBf16Pair(first * scale, second * scale);
    });
    return;
  }
  const int part = blockIdx.z;
  mixed.ForEach(a.value_dim, [&](int query, int channel, float first, float second) {
    if (query >= t.pairs) return;
    const LatentPartials to = PartialsOf(partials, t.first_pair + query, parts, a.value_dim);
    *reinterpret_cast<float2*>(to.mixed + part * a.value_dim + channel) =
        make_float2(first, second);
  });
  if (threadIdx.x < t.pairs) {
    PartialsOf(partials, t.first_pair + threadIdx.x, parts, a.value_dim).found[part] =
        memory.found[threadIdx.x];
  }
}

/// A block a (row, head).
__global__ void CombineLatents(const __grid_constant__ LatentAttentionArgs a, int parts,
                               float* partials) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t pair = static_cast<int64_t>(blockIdx.x) * a.heads + blockIdx.y;
  const int position = a.inputs.rows[blockIdx.x].position;
  const int used = position / PartKeys(position) + 1;
  const LatentPartials from = PartialsOf(partials, pair, parts, a.value_dim);
  for (int d = threadIdx.x; d < a.value_dim; d += blockDim.x) {
    const float value = Combine(
        used, -INFINITY, [&](int i) { return from.found[i]; },
        [&](int i) { return from.mixed[i * a.value_dim + d]; });
    a.out[pair * a.value_dim + d] = ToBf16(value);
  }
}

bool Fits(int64_t bytes) {
  return bytes <= gpu::DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

template <typename F>
int LaunchForm(const LatentAttentionArgs& a, int64_t pairs, int units, int parts, float* partials,
               CUstream_st* stream) {
  const auto bytes = static_cast<int>(F::Bytes(a.key_dim));
  const int error =
      cudaFuncSetAttribute(LatentKernel<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != 0) return error;
  const dim3 grid(static_cast<unsigned>((pairs + F::kQueries - 1) / F::kQueries), units, parts);
  return LaunchEarly(LatentKernel<F>, grid, kThreads, bytes, stream, a, parts, partials);
}

/// units: of at most `pairs` pairs.
int Launch(const LatentAttentionArgs& a, int64_t pairs, int units, int parts, float* partials,
           CUstream_st* stream) {
  const auto bad = [](int dim, int most) { return dim % 16 != 0 || dim < 16 || dim > most; };
  if (bad(a.key_dim, kMaxLatentKeyDim) || bad(a.value_dim, kMaxLatentValueDim) || units > 65535) {
    return static_cast<int>(cudaErrorInvalidValue);
  }
  const auto launch = pairs > Narrow::kQueries && Fits(Wide::Bytes(a.key_dim)) ? LaunchForm<Wide>
                      : Fits(Narrow::Bytes(a.key_dim))                         ? LaunchForm<Narrow>
                                                                               : LaunchForm<Small>;
  return launch(a, pairs, units, parts, partials, stream);
}

}  // namespace

int64_t LatentPartialBytes(int64_t rows, int heads, int value_dim, int parts) {
  return rows * heads * parts * (value_dim + 2) * static_cast<int64_t>(sizeof(float));
}

int LaunchLatentDecode(const LatentAttentionArgs& a, int parts, float* partials,
                       CUstream_st* stream) {
  const int error = Launch(a, a.heads, a.rows, parts, partials, stream);
  if (error != 0) return error;
  return LaunchEarly(CombineLatents, dim3(a.rows, a.heads), a.value_dim <= 128 ? 128 : 256, 0,
                     stream, a, parts, partials);
}

int LaunchLatentPrefill(const LatentAttentionArgs& a, int tiles, CUstream_st* stream) {
  return Launch(a, int64_t{QueryTile::kRows} * a.heads, tiles, 1, nullptr, stream);
}

}  // namespace moert::host
