// Tiles of 128 x 128 in registers, 8 x 8 per thread. Slices of 8 of the inner dimension alternate
// between two halves of shared memory.
#include "kernels/cuda/offline/dense_product.h"
#include "kernels/cuda/primitives/launch.cuh"

namespace moert::cuda {
namespace {

constexpr int kTile = 128;
constexpr int kSlice = 8;
constexpr int kThreads = 256;
constexpr int kPitch = kTile + 4;
constexpr int kLoads = kTile * kSlice / kThreads;  // per thread and operand

using Slice = float[kSlice][kPitch];

struct ProductArgs {
  DenseMatrix a, b;
  float* c;
  int64_t stride;
  int64_t m, n, k;
};

/// A thread's elements of a slice of an operand, while they are loaded. kAlongK: the operand is
/// [lines, k]; else [k, lines].
template <bool kAlongK>
struct Fetched {
  float values[kLoads];

  __device__ void Load(const DenseMatrix& from, int64_t line, int64_t lines, int64_t p, int64_t k) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = i * kThreads + threadIdx.x;
      const int64_t l = line + Line(at), q = p + Depth(at);
      values[i] = 0;
      if (l < lines && q < k) {
        values[i] = from.data[kAlongK ? l * from.stride + q : q * from.stride + l];
      }
    }
  }
  __device__ void Store(Slice& to) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = i * kThreads + threadIdx.x;
      to[Depth(at)][Line(at)] = values[i];
    }
  }
  static __device__ int Line(int at) { return kAlongK ? at / kSlice : at % kTile; }
  static __device__ int Depth(int at) { return kAlongK ? at % kSlice : at / kTile; }
};

/// sums[i][j] += a slice of one row of the tile times one column, in ascending order. A thread's
/// rows are 4 y + 64 h.. and its columns 4 x + 64 h.., h = 0, 1.
__device__ __forceinline__ void MultiplySlice(const Slice& a, const Slice& b, int y, int x,
                                              float (&sums)[8][8]) {
#pragma unroll
  for (int p = 0; p < kSlice; ++p) {
    float left[8], right[8];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float4 l = *reinterpret_cast<const float4*>(&a[p][4 * y + 64 * h]);
      const float4 r = *reinterpret_cast<const float4*>(&b[p][4 * x + 64 * h]);
      left[4 * h] = l.x, left[4 * h + 1] = l.y, left[4 * h + 2] = l.z, left[4 * h + 3] = l.w;
      right[4 * h] = r.x, right[4 * h + 1] = r.y, right[4 * h + 2] = r.z, right[4 * h + 3] = r.w;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
    }
  }
}

/// kBAlongK: b is [n, k], else [k, n]. kAdd: the sums are added to c.
template <bool kBAlongK, bool kAdd>
__global__ void __launch_bounds__(kThreads, 2)
    ProductKernel(const __grid_constant__ ProductArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ __align__(16) Slice a[2], b[2];
  const int64_t row = int64_t{blockIdx.y} * kTile, column = int64_t{blockIdx.x} * kTile;
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  float sums[8][8] = {};
  Fetched<true> next_a;
  Fetched<kBAlongK> next_b;
  next_a.Load(args.a, row, args.m, 0, args.k);
  next_b.Load(args.b, column, args.n, 0, args.k);
  int half = 0;
  for (int64_t p = 0; p < args.k; p += kSlice, half ^= 1) {
    next_a.Store(a[half]);
    next_b.Store(b[half]);
    __syncthreads();  // no thread beyond this point reads the other half
    if (p + kSlice < args.k) {
      next_a.Load(args.a, row, args.m, p + kSlice, args.k);
      next_b.Load(args.b, column, args.n, p + kSlice, args.k);
    }
    MultiplySlice(a[half], b[half], y, x, sums);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int64_t r = row + 4 * y + 64 * (i / 4) + i % 4;
    if (r >= args.m) continue;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int64_t c = column + 4 * x + 64 * (j / 4) + j % 4;
      if (c >= args.n) continue;
      float* const to = args.c + r * args.stride + c;
      *to = kAdd ? *to + sums[i][j] : sums[i][j];
    }
  }
}

template <bool kBAlongK, bool kAdd>
int Launch(const ProductArgs& args, CUstream_st* stream) {
  if (args.m == 0 || args.n == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((args.n + kTile - 1) / kTile),
                  static_cast<unsigned>((args.m + kTile - 1) / kTile));
  return LaunchEarly(ProductKernel<kBAlongK, kAdd>, grid, kThreads, 0, stream, args);
}

// Moments: tiles of 64 x 64, 4 x 4 per thread. Sums of kChunk tokens are added to double sums, as
// on the CPU.
constexpr int kMomentTile = 64;
constexpr int kMomentSlice = 16;
constexpr int kChunk = 256;

struct MomentArgs {
  const float* x;
  const float* w;
  int64_t tokens, k;
  double* h;
};

__global__ void __launch_bounds__(kThreads) MomentsKernel(const __grid_constant__ MomentArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  if (blockIdx.x > blockIdx.y) return;  // above the diagonal
  __shared__ __align__(16) float a[kMomentSlice][kMomentTile + 4], b[kMomentSlice][kMomentTile + 4];
  const int64_t row = int64_t{blockIdx.y} * kMomentTile, column = int64_t{blockIdx.x} * kMomentTile;
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  double totals[4][4] = {};
  for (int64_t begin = 0; begin < args.tokens; begin += kChunk) {
    const int64_t end = begin + kChunk < args.tokens ? begin + kChunk : args.tokens;
    float sums[4][4] = {};
    for (int64_t p = begin; p < end; p += kMomentSlice) {
      __syncthreads();
      for (int at = threadIdx.x; at < kMomentSlice * kMomentTile; at += kThreads) {
        const int64_t t = p + at / kMomentTile;
        const int c = at % kMomentTile;
        const float weight = t < end ? args.w[t] : 0.0f;
        const bool left = t < end && row + c < args.k, right = t < end && column + c < args.k;
        a[at / kMomentTile][c] = left ? args.x[t * args.k + row + c] * weight : 0.0f;
        b[at / kMomentTile][c] = right ? args.x[t * args.k + column + c] * weight : 0.0f;
      }
      __syncthreads();
#pragma unroll
      for (int s = 0; s < kMomentSlice; ++s) {
        const float4 l = *reinterpret_cast<const float4*>(&a[s][4 * y]);
        const float4 r = *reinterpret_cast<const float4*>(&b[s][4 * x]);
        const float left[4] = {l.x, l.y, l.z, l.w}, right[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) totals[i][j] += static_cast<double>(sums[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t r = row + 4 * y + i, c = column + 4 * x + j;
      if (r < args.k && c <= r) args.h[r * args.k + c] = totals[i][j];
    }
  }
}

}  // namespace

int LaunchProduct(const DenseMatrix& a, const DenseMatrix& b, float* c, int64_t m, int64_t n,
                  int64_t k, CUstream_st* stream) {
  return Launch<true, false>({a, b, c, n, m, n, k}, stream);
}

int LaunchAddProduct(const DenseMatrix& a, const DenseMatrix& b, float* c, int64_t stride,
                     int64_t m, int64_t n, int64_t k, CUstream_st* stream) {
  return Launch<false, true>({a, b, c, stride, m, n, k}, stream);
}

int LaunchMoments(const float* x, const float* w, int64_t tokens, int64_t k, double* h,
                  CUstream_st* stream) {
  const auto tiles = static_cast<unsigned>((k + kMomentTile - 1) / kMomentTile);
  return LaunchEarly(MomentsKernel, dim3(tiles, tiles), kThreads, 0, stream,
                     MomentArgs{x, w, tokens, k, h});
}

}  // namespace moert::cuda
