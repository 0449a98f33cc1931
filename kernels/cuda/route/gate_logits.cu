// The gate's logits: of few tokens by sums in fp32, of many by tensor cores.
//
// Both ways cut the width into kGateParts parts, one per warp, and sum these in order. A logit
// depends only on its token, its expert and the way, never on what is computed beside it.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/few/few_products.h"
#include "kernels/cuda/few/pack_unit.cuh"
#include "kernels/cuda/primitives/element.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/packing.cuh"
#include "kernels/cuda/route/gate_tiles.cuh"
#include "kernels/cuda/route/route.h"

namespace moert::cuda {
namespace {

constexpr int kThreads = kGateThreads;
/// From this many of the larger tiles on, there is work for most multiprocessors.
constexpr int kManyTiles = 96;

constexpr int kHeld = 8;  // weights of a lane that are under way together
__device__ __forceinline__ void Hold(const float* row, int first, int end, float (&held)[kHeld]) {
#pragma unroll
  for (int j = 0; j < kHeld; ++j) held[j] = first + 32 * j < end ? row[first + 32 * j] : 0.0f;
}

/// Stores the zeros. Done by the first CTA.
__device__ __forceinline__ void StoreZeros(const GateZeros& zeros) {
  if (blockIdx.x != 0 || blockIdx.y != 0) return;
  for (int i = threadIdx.x; i < zeros.tiles; i += kThreads) zeros.ready[i] = 0;
  if (threadIdx.x < 2 && zeros.ticket != nullptr) zeros.ticket[threadIdx.x] = 0;
}

/// A CTA has one expert and kTokens tokens. Experts of the second gate follow those of the first;
/// the CTAs after them pack the tokens' rows.
template <typename T, int kTokens>
__global__ void __launch_bounds__(kThreads)
    FewGateLogitsKernel(const T* x, const __grid_constant__ GateArgs args) {
  TriggerDependentLaunch();
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int first = blockIdx.y * kTokens;
  const int behind = static_cast<int>(blockIdx.x) - args.experts - args.second.experts;
  if (behind >= 0) {
    GridDependencySync();
    const int unit = behind * kThreads + static_cast<int>(threadIdx.x);
    for (int64_t t = first; t < min(first + kTokens, args.tokens); ++t) {
      PackUnit(x + t * args.stride, args.hidden, unit, args.packed + t * args.packed_stride);
    }
    return;
  }
  const bool own = static_cast<int>(blockIdx.x) < args.experts;
  const GateOf of = own ? GateOf{args.gate, args.experts, args.logits} : args.second;
  const int expert = static_cast<int>(blockIdx.x) - (own ? 0 : args.experts);
  const float* row = of.gate + static_cast<int64_t>(expert) * args.hidden;
  const int width = (args.hidden + kGateParts - 1) / kGateParts;
  const int begin = warp * width + lane;
  const int end = min(args.hidden, (warp + 1) * width);
  float held[kHeld];
  Hold(row, begin, end, held);  // constants: they need not wait for the preceding kernels
  GridDependencySync();
  StoreZeros(args.zeros);
  const T* at[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) at[t] = x + min(first + t, args.tokens - 1) * args.stride;
  float sum[kTokens] = {};
  for (int base = begin; base < end; base += 32 * kHeld) {
    if (base != begin) Hold(row, base, end, held);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = base + 32 * j;
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        sum[t] = fmaf(held[j], i < end ? ToFloat(at[t][i]) : 0.0f, sum[t]);
      }
    }
  }
  __shared__ float parts[kGateParts][kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    sum[t] = WarpSum(sum[t]);
    if (lane == 0) parts[warp][t] = sum[t];
  }
  __syncthreads();
  const int t = threadIdx.x;
  if (t >= kTokens || first + t >= args.tokens) return;
  float total = parts[0][t];
#pragma unroll
  for (int p = 1; p < kGateParts; ++p) total += parts[p][t];
  of.logits[static_cast<int64_t>(first + t) * of.experts + expert] = total;
}

/// Shared memory that is enough for the largest tiles. sm_90, for example, has it.
constexpr int kMostShared = 220 << 10;

/// Shared memory that the current device gives a CTA.
cudaError_t FindShared(int* bytes) {
#ifdef MOERT_SMALLER_DEVICE
  *bytes = kLeastShared;
  return cudaSuccess;
#else
  return FindAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, bytes);
#endif
}

template <typename T, int kM, int kN, int kStages, bool kAligned>
int LaunchTiles(const T* x, const GateArgs& args, cudaStream_t stream) {
  constexpr int kBytes = GateRing<T, kM, kN, kStages>::kBytes;
  static_assert(kBytes + sizeof(GateSums<kN>) <= (kN < 4 ? kLeastShared : kMostShared));
  const auto kernel = GateTilesKernel<T, kM, kN, kStages, kAligned>;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  int processors = 0;
  error = FindAttribute(cudaDevAttrMultiProcessorCount, &processors);
  if (error != cudaSuccess) return error;
  const int tiles =
      (args.experts + 8 * kN - 1) / (8 * kN) * ((args.tokens + 16 * kM - 1) / (16 * kM));
  return LaunchEarly(kernel, std::min(tiles, processors), kThreads, kBytes, stream, x, args);
}

template <typename T>
int LaunchMany(const T* x, const GateArgs& args, cudaStream_t stream) {
  const auto aligned = [](const void* data, int64_t row_bytes) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && row_bytes % 16 == 0;
  };
  if (!aligned(x, args.stride * sizeof(T)) || !aligned(args.gate, args.hidden * sizeof(float))) {
    return LaunchTiles<T, 1, 2, 2, false>(x, args, stream);
  }
  int shared = 0;
  if (const cudaError_t error = FindShared(&shared); error != cudaSuccess) return error;
  if (shared < kMostShared) return LaunchTiles<T, 1, 2, 2, true>(x, args, stream);
  if ((args.tokens + 63) / 64 * ((args.experts + 31) / 32) < kManyTiles) {
    return LaunchTiles<T, 1, 4, 4, true>(x, args, stream);
  }
  return LaunchTiles < T, 4, 4, sizeof(T) == 4 ? 2 : 3, true > (x, args, stream);
}

template <typename T>
int LaunchFew(const T* x, const GateArgs& args, cudaStream_t stream) {
  const int packing =
      args.packed == nullptr ? 0 : (PackedUnits(args.hidden) + kThreads - 1) / kThreads;
  constexpr int kTokens = 4;
  const bool one = args.tokens == 1;
  const dim3 grid(args.experts + args.second.experts + packing,
                  one ? 1 : (args.tokens + kTokens - 1) / kTokens);
  const auto kernel = one ? FewGateLogitsKernel<T, 1> : FewGateLogitsKernel<T, kTokens>;
  return LaunchEarly(kernel, grid, kThreads, 0, stream, x, args);
}

}  // namespace

int LaunchGateLogits(const DeviceRows& x, const float* gate, int experts, float* logits,
                     CUstream_st* stream, uint8_t* packed, int64_t packed_stride,
                     const GateOf& second, const GateZeros& zeros) {
  if (x.rows > kFewTokens && (second.experts != 0 || zeros.ticket != nullptr)) {
    return cudaErrorInvalidValue;
  }
  return WithElement(x.dtype, [&](auto type) -> int {
    using T = ElementOf<decltype(type)>;
    const GateArgs args{x.rows, x.cols, x.stride,      gate,   experts,
                        logits, packed, packed_stride, second, zeros};
    const auto* rows = static_cast<const T*>(x.data);
    if (x.rows <= kFewTokens) return LaunchFew(rows, args, stream);
    const int error = LaunchMany(rows, args, stream);
    if (error != 0 || packed == nullptr) return error;
    return LaunchPackRows(x, 0, packed, packed_stride, stream);
  });
}

}  // namespace moert::cuda
