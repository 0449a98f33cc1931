// Normalization of one row by a block.
#ifndef MOERT_EXAMPLES_HOST_CUDA_NORM_ROW_CUH_
#define MOERT_EXAMPLES_HOST_CUDA_NORM_ROW_CUH_

#include "host/cuda/norm_kernel.h"
#include "host/cuda/reduce.cuh"

namespace moert::host {

constexpr int kNormThreads = 256;

/// Called by kNormThreads threads, all of the block; the result has the same bits in every kernel.
/// A thread reads back only what it wrote itself. Reads bypass the L1 cache, so that the row may be
/// written by other blocks of the same launch. parts: scratch of BlockSum.
__device__ __forceinline__ void NormRow(const NormArgs& a, int64_t row, float* parts) {
  constexpr int kHeld = 8;  // values per thread in registers: all of a row up to 2048 wide
  const int64_t at = row * a.width;
  float* x = a.residual + at;
  const int width = a.width;
  float held[kHeld], weight[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = threadIdx.x + j * kNormThreads;
    held[j] = i < width ? __ldcg(x + i) : 0.0f;
    weight[j] = i < width ? a.weight[i] : 0.0f;
  }
  if (a.delta != nullptr) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = threadIdx.x + j * kNormThreads;
      if (i < width) x[i] = held[j] += a.delta[at + i];
    }
  }
  float sum = 0, squares = 0;
  const auto add = [&](float v) {
    sum += v;
    squares = __fmaf_rn(v, v, squares);
  };
#pragma unroll
  for (int j = 0; j < kHeld; ++j) add(held[j]);
  constexpr int kRest = kHeld * kNormThreads;
  for (int i = threadIdx.x + kRest; i < width; i += kNormThreads) {
    float v = __ldcg(x + i);
    if (a.delta != nullptr) x[i] = v += a.delta[at + i];
    add(v);
  }
  float mean = 0;
  if (a.bias != nullptr) {
    mean = BlockSum(sum, parts) / static_cast<float>(width);
    squares = 0;
    for (int i = threadIdx.x; i < width; i += kNormThreads) {
      const float v = __ldcg(x + i) - mean;
      squares = __fmaf_rn(v, v, squares);
    }
  }
  const float variance = BlockSum(squares, parts) / static_cast<float>(width);
  const float scale = 1.0f / sqrtf(variance + a.eps);
  const auto store = [&](int i, float v, float w) {
    float y = (v - mean) * scale * w;
    if (a.bias != nullptr) y += a.bias[i];
    if (a.f32 != nullptr) a.f32[at + i] = y;
    if (a.bf16 != nullptr) a.bf16[at + i] = ToBf16(y);
  };
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = threadIdx.x + j * kNormThreads;
    if (i < width) store(i, held[j], weight[j]);
  }
  for (int i = threadIdx.x + kRest; i < width; i += kNormThreads) {
    store(i, __ldcg(x + i), a.weight[i]);
  }
}

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_NORM_ROW_CUH_
