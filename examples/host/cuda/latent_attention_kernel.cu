// A block takes some query rows with all their heads; all of these see the same keys.
#include <algorithm>

#include "host/cuda/decode_found.cuh"
#include "host/cuda/first_key.cuh"
#include "host/cuda/latent_attention_kernel.h"
#include "host/cuda/latent_block.cuh"
#include "host/cuda/mma.cuh"
#include "host/cuda/reduce.cuh"
#include "util/launch.cuh"

namespace moert::host {
namespace {

using gpu::GridDependencySync;
using gpu::LaunchEarly;
using gpu::TriggerDependentLaunch;
using namespace latent;

/// The work of a block: pairs of a row and a head, adjacent in memory, and keys.
struct Task {
  int64_t first_pair;  // of the step
  int first, pairs;    // of the unit of rows
  int position;        // of the unit's first row
  int begin, end;      // keys
};

/// Keys per part, for a query at `position`.
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
    Scores(memory, a.key_dim, stage(i));
    __syncthreads();
    softmax.Weigh(memory, scale, t.begin + i * F::kKeys, low, end);
    __syncthreads();
    mixed->Add(memory, stage(i), a.value_dim);
    __syncthreads();
  }
  softmax.Store(memory);
  __syncthreads();
}

/// partials: null if blocks take tiles of rows over all their keys; else one row and a part of
/// them.
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
    if (from > row.position) return;  // CombineLatents does not read this part
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

/// One block per (row, head).
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

/// units: rows or tiles, each of at most `pairs` pairs.
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
