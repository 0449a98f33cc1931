// Flash decoding: a block takes one piece of the keys of one query row and of one group of heads
// that share them; a second kernel puts the pieces of a row together.
#include "host/cuda/attention_kernel.h"
#include "host/cuda/reduce.cuh"
#include "util/launch.cuh"

namespace moert::host {
namespace {

using gpu::GridDependencySync;
using gpu::LaunchEarly;
using gpu::TriggerDependentLaunch;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxGroup = 8;  // query heads of one block

/// First and last + 1 key of a row that lie in piece `index`, counted from the row's first.
struct Piece {
  int begin, end;
};
__device__ __forceinline__ Piece PieceOf(int position, int window, int index) {
  const int end = position + 1;
  const int first = window > 0 && end > window ? end - window : 0;
  const int from = (first / kPieceKeys + index) * kPieceKeys;
  return {max(from, first), min(from + kPieceKeys, end)};
}

/// Partials of one (row, head, piece): maximum, sum, head_dim channels.
__device__ __forceinline__ float* PartialAt(float* partials, const AttentionArgs& a, int pieces,
                                            int64_t row, int head, int piece) {
  return partials + ((row * a.heads + head) * pieces + piece) * (a.head_dim + 2);
}

template <int kGroup>
__global__ void __launch_bounds__(kThreads)
    DecodeKernel(const __grid_constant__ AttentionArgs a, int pieces, float* partials) {
  __shared__ __align__(16) float queries[kGroup][kMaxHeadDim];
  // Scores of the piece, then the channels' sums by subset of keys.
  __shared__ float scratch[kGroup][kPieceKeys];
  __shared__ float parts[kGroup][kWarps];
  TriggerDependentLaunch();
  GridDependencySync();
  const int dim = a.head_dim;
  const int per_kv = a.heads / a.kv_heads;
  const int parts_of_kv = (per_kv + kGroup - 1) / kGroup;
  const int kv_head = blockIdx.y / parts_of_kv;
  const int first_head = kv_head * per_kv + blockIdx.y % parts_of_kv * kGroup;
  const int heads = min(kGroup, (kv_head + 1) * per_kv - first_head);
  const int64_t row_index = blockIdx.x;
  const RowInput row = a.inputs.rows[row_index];
  const Piece piece = PieceOf(row.position, a.window, blockIdx.z);
  if (piece.begin >= piece.end) {
    if (partials != nullptr && threadIdx.x < heads) {
      float* out = PartialAt(partials, a, pieces, row_index, first_head + threadIdx.x, blockIdx.z);
      out[0] = -INFINITY;
      out[1] = 0;
    }
    return;
  }
  const SequenceCache cache = a.inputs.sequences[row.sequence];
  const int64_t base =
      (static_cast<int64_t>(a.layer) * a.kv_heads + kv_head) * cache.capacity * dim;
  const uint16_t* keys = cache.keys + base;
  const uint16_t* values = cache.values + base;
  const float scale = rsqrtf(static_cast<float>(dim)) * 1.44269504f;  // scores in powers of two
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  for (int i = threadIdx.x; i < kGroup * dim; i += kThreads) {
    const int g = i / dim, d = i % dim;
    queries[g][d] = g < heads ? a.queries[row_index * a.query_stride +
                                          static_cast<int64_t>(first_head + g) * dim + d] *
                                    scale
                              : 0.0f;
  }
  __syncthreads();

  // A thread a key.
  float highest[kGroup];
#pragma unroll
  for (int g = 0; g < kGroup; ++g) highest[g] = -INFINITY;
  for (int key = piece.begin + threadIdx.x; key < piece.end; key += kThreads) {
    const uint4* k = reinterpret_cast<const uint4*>(keys + static_cast<int64_t>(key) * dim);
    float score[kGroup] = {};
#pragma unroll 2
    for (int i = 0; i < dim / 8; ++i) {
      const uint4 packed = k[i];
      const float2 v[4] = {FromBf16Pair(packed.x), FromBf16Pair(packed.y), FromBf16Pair(packed.z),
                           FromBf16Pair(packed.w)};
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        const float4 q0 = *reinterpret_cast<const float4*>(&queries[g][i * 8]);
        const float4 q1 = *reinterpret_cast<const float4*>(&queries[g][i * 8 + 4]);
        score[g] += q0.x * v[0].x + q0.y * v[0].y + q0.z * v[1].x + q0.w * v[1].y + q1.x * v[2].x +
                    q1.y * v[2].y + q1.z * v[3].x + q1.w * v[3].y;
      }
    }
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      scratch[g][key - piece.begin] = score[g];
      highest[g] = fmaxf(highest[g], score[g]);
    }
  }
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    highest[g] = WarpMax(highest[g]);
    if (lane == 0) parts[g][warp] = highest[g];
  }
  __syncthreads();
  float sum[kGroup];
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    highest[g] = parts[g][0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) highest[g] = fmaxf(highest[g], parts[g][w]);
    sum[g] = 0;
    for (int i = threadIdx.x; i < piece.end - piece.begin; i += kThreads) {
      const float p = exp2f(scratch[g][i] - highest[g]);
      scratch[g][i] = p;
      sum[g] += p;
    }
    sum[g] = WarpSum(sum[g]);
  }
  __syncthreads();
  if (lane == 0) {
#pragma unroll
    for (int g = 0; g < kGroup; ++g) parts[g][warp] = sum[g];
  }
  __syncthreads();
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    sum[g] = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum[g] += parts[g][w];
  }

  // A thread two channels of every `subsets`-th key.
  const int pairs = dim / 2, subsets = kThreads / pairs;
  const int subset = threadIdx.x / pairs, channel = threadIdx.x % pairs * 2;
  float2 mixed[kGroup] = {};
  if (subset < subsets) {
#pragma unroll 4
    for (int key = piece.begin + subset; key < piece.end; key += subsets) {
      const float2 v = FromBf16Pair(
          *reinterpret_cast<const uint32_t*>(values + static_cast<int64_t>(key) * dim + channel));
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        const float p = scratch[g][key - piece.begin];
        mixed[g].x += p * v.x;
        mixed[g].y += p * v.y;
      }
    }
  }
  __syncthreads();                     // the scores have been read
  float* const sums = &scratch[0][0];  // [subsets, dim] of one head: 256 floats at most
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    if (subset < subsets) {
      sums[g * kPieceKeys + subset * dim + channel] = mixed[g].x;
      sums[g * kPieceKeys + subset * dim + channel + 1] = mixed[g].y;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < heads * dim; i += kThreads) {
    const int g = i / dim, d = i % dim;
    float total = 0;
    for (int s = 0; s < subsets; ++s) total += sums[g * kPieceKeys + s * dim + d];
    if (partials == nullptr) {
      float whole = 0;
#pragma unroll
      for (int j = 0; j < kGroup; ++j) whole = j == g ? sum[j] : whole;
      a.out[(row_index * a.heads + first_head + g) * dim + d] = ToBf16(total / whole);
    } else {
      PartialAt(partials, a, pieces, row_index, first_head + g, blockIdx.z)[2 + d] = total;
    }
  }
  if (partials != nullptr && threadIdx.x == 0) {
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      if (g >= heads) break;
      float* out = PartialAt(partials, a, pieces, row_index, first_head + g, blockIdx.z);
      out[0] = highest[g];
      out[1] = sum[g];
    }
  }
}

/// A block a (row, head).
__global__ void CombineKernel(const __grid_constant__ AttentionArgs a, int pieces,
                              float* partials) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t row = blockIdx.x;
  const int head = blockIdx.y;
  float highest = -INFINITY;
  for (int p = 0; p < pieces; ++p) {
    highest = fmaxf(highest, PartialAt(partials, a, pieces, row, head, p)[0]);
  }
  for (int d = threadIdx.x; d < a.head_dim; d += blockDim.x) {
    float sum = 0, mixed = 0;
    for (int p = 0; p < pieces; ++p) {
      const float* part = PartialAt(partials, a, pieces, row, head, p);
      if (part[1] == 0) continue;  // an empty piece: its channels were not written
      const float weight = exp2f(part[0] - highest);
      sum += weight * part[1];
      mixed += weight * part[2 + d];
    }
    a.out[(row * a.heads + head) * a.head_dim + d] = ToBf16(mixed / sum);
  }
}

template <int kGroup>
int Launch(const AttentionArgs& a, int pieces, float* partials, CUstream_st* stream) {
  const int per_kv = a.heads / a.kv_heads;
  const dim3 grid(a.rows, a.kv_heads * ((per_kv + kGroup - 1) / kGroup), pieces);
  return LaunchEarly(DecodeKernel<kGroup>, grid, kThreads, 0, stream, a, pieces, partials);
}

}  // namespace

int64_t PartialBytes(int64_t rows, int heads, int head_dim, int pieces) {
  return rows * heads * pieces * (head_dim + 2) * static_cast<int64_t>(sizeof(float));
}

int LaunchDecodeAttention(const AttentionArgs& a, int pieces, float* partials,
                          CUstream_st* stream) {
  if (a.head_dim % 16 != 0 || a.head_dim > kMaxHeadDim) {
    return static_cast<int>(cudaErrorInvalidValue);
  }
  // A window lies in so many pieces, wherever it begins.
  if (a.window > 0) pieces = min(pieces, (a.window + kPieceKeys - 2) / kPieceKeys + 1);
  float* const parts = pieces > 1 ? partials : nullptr;
  const int per_kv = a.heads / a.kv_heads;
  const int error = per_kv == 1   ? Launch<1>(a, pieces, parts, stream)
                    : per_kv == 2 ? Launch<2>(a, pieces, parts, stream)
                    : per_kv <= 4 ? Launch<4>(a, pieces, parts, stream)
                                  : Launch<kMaxGroup>(a, pieces, parts, stream);
  if (error != 0 || parts == nullptr) return error;
  return LaunchEarly(CombineKernel, dim3(a.rows, a.heads), a.head_dim <= 64 ? 64 : 128, 0, stream,
                     a, pieces, parts);
}

}  // namespace moert::host
