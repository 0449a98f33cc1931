// The gate's logits: of few tokens by sums in fp32, of many by tensor cores.
//
// Both cut the width into kGateParts parts, each of one warp, and sum these in order. A logit
// depends on its token, its expert and the way alone, never on what is computed beside it.
#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/primitives/element.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/primitives/pack_unit.cuh"
#include "kernels/cuda/primitives/split_bf16.cuh"
#include "kernels/cuda/route.h"

namespace moert::cuda {
namespace {

constexpr int kGateParts = 8;
constexpr int kThreads = 32 * kGateParts;
/// From so many of the larger tiles on there is work for most multiprocessors.
constexpr int kManyTiles = 96;

struct GateArgs {
  int tokens;
  int hidden;
  int64_t stride;  // of x, elements
  const float* gate;
  int experts;
  float* logits;
  uint8_t* packed;  // null: rows are not packed
  int64_t packed_stride;
};

constexpr int kHeld = 8;  // weights of a lane that are under way together
__device__ __forceinline__ void Hold(const float* row, int first, int end, float (&held)[kHeld]) {
#pragma unroll
  for (int j = 0; j < kHeld; ++j) held[j] = first + 32 * j < end ? row[first + 32 * j] : 0.0f;
}

/// A CTA an expert and kTokens tokens. CTAs behind the experts pack the tokens' rows.
template <typename T, int kTokens>
__global__ void __launch_bounds__(kThreads)
    FewGateLogitsKernel(const T* x, const __grid_constant__ GateArgs args) {
  TriggerDependentLaunch();
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int expert = blockIdx.x;
  const int first = blockIdx.y * kTokens;
  if (expert >= args.experts) {
    GridDependencySync();
    const int unit = (expert - args.experts) * kThreads + static_cast<int>(threadIdx.x);
    for (int64_t t = first; t < min(first + kTokens, args.tokens); ++t) {
      PackUnit(x + t * args.stride, args.hidden, unit, args.packed + t * args.packed_stride);
    }
    return;
  }
  const float* row = args.gate + static_cast<int64_t>(expert) * args.hidden;
  const int width = (args.hidden + kGateParts - 1) / kGateParts;
  const int begin = warp * width + lane;
  const int end = min(args.hidden, (warp + 1) * width);
  float held[kHeld];
  Hold(row, begin, end, held);  // constants: they need not wait for the kernels in front
  GridDependencySync();
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
  args.logits[static_cast<int64_t>(first + t) * args.experts + expert] = total;
}

/// Four elements of a row from k on, as they lie in memory; zeros from `end` on. kVector: rows
/// begin at multiples of four elements, and so does their end.
template <bool kVector, typename T>
__device__ __forceinline__ void LoadFour(const T* row, int k, int end,
                                         uint32_t (&words)[sizeof(T)]) {
  if constexpr (kVector && sizeof(T) == 4) {
    uint4 v{};
    if (k < end) v = *reinterpret_cast<const uint4*>(row + k);
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
  } else if constexpr (kVector) {
    uint2 v{};
    if (k < end) v = *reinterpret_cast<const uint2*>(row + k);
    words[0] = v.x, words[1] = v.y;
  } else if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = k + i < end ? __float_as_uint(row[k + i]) : 0;
  } else {
    const auto* bits = reinterpret_cast<const uint16_t*>(row);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t low = k + 2 * i < end ? bits[k + 2 * i] : 0;
      words[i] = low | (k + 2 * i + 1 < end ? uint32_t{bits[k + 2 * i + 1]} << 16 : 0);
    }
  }
}

/// How many bf16 a hidden state is the sum of.
template <typename T>
constexpr int kRowParts = sizeof(T) == 4              ? 3
                          : std::is_same_v<T, __half> ? 2
                                                      : 1;

/// A CTA 16 kM tokens by 8 kN experts. Weights are the sum of three bf16, hidden states of one, two
/// or three. Of their products those below 2^-26 of the whole are left out; the others are exact.
/// Tensor cores add those of 16 channels, smallest first, and fp32 additions what these give.
///
/// Of every 16 channels lane t of four has 4t .. 4t + 3, which it takes for the fragments' 2t,
/// 2t + 1, 2t + 8 and 2t + 9.
template <typename T, int kM, int kN, int kSteps, bool kVector>
__global__ void __launch_bounds__(kThreads)
    GateTilesKernel(const T* x, const __grid_constant__ GateArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int first_token = blockIdx.y * (16 * kM);
  const int first_expert = blockIdx.x * (8 * kN);
  const T* rows[kM][2];
  const float* weights[kN];
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) {
    rows[i / 2][i % 2] = x + min(first_token + i * 8 + lane / 4, args.tokens - 1) * args.stride;
  }
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const int expert = min(first_expert + n * 8 + lane / 4, args.experts - 1);
    weights[n] = args.gate + static_cast<int64_t>(expert) * args.hidden;
  }
  const int steps = (args.hidden + 15) / 16;
  const int begin = steps * warp / kGateParts * 16;
  const int end = min(args.hidden, steps * (warp + 1) / kGateParts * 16);

  uint32_t x_words[kSteps][kM][2][sizeof(T)], weight_words[kSteps][kN][4];
  const auto load = [&](int base) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int k = base + s * 16 + lane % 4 * 4;
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        LoadFour<kVector>(rows[m][0], k, end, x_words[s][m][0]);
        LoadFour<kVector>(rows[m][1], k, end, x_words[s][m][1]);
      }
#pragma unroll
      for (int n = 0; n < kN; ++n) LoadFour<kVector>(weights[n], k, end, weight_words[s][n]);
    }
  };
  constexpr int kX = kRowParts<T>;
  constexpr int kTogether = kM >= 4 ? 1 : 4 / kM;  // of kN: chains of products side by side
  float total[kM][kN][4] = {};
  load(begin);
#pragma unroll 1
  for (int base = begin; base < end; base += 16 * kSteps) {
    uint32_t a[kSteps][kX][kM][4], b[kSteps][3][kN][2];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 2 * kM; ++i) {
        uint32_t parts[kX][2];
        SplitFour<T>(x_words[s][i / 2][i % 2], parts);
#pragma unroll
        for (int p = 0; p < kX; ++p) {
          a[s][p][i / 2][i % 2] = parts[p][0];
          a[s][p][i / 2][i % 2 + 2] = parts[p][1];
        }
      }
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        uint32_t parts[3][2];
        SplitFour<float>(weight_words[s][n], parts);
#pragma unroll
        for (int p = 0; p < 3; ++p) {
          b[s][p][n][0] = parts[p][0];
          b[s][p][n][1] = parts[p][1];
        }
      }
    }
    load(base + 16 * kSteps);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int n = 0; n < kN; n += kTogether) {
        float d[kM][kTogether][4] = {};
#pragma unroll
        for (int order = 2; order >= 0; --order) {
#pragma unroll
          for (int p = 0; p < kX && p <= order; ++p) {
#pragma unroll
            for (int i = 0; i < kM * kTogether; ++i) {
              const int m = i / kTogether, j = i % kTogether;
              MmaBf16(d[m][j], a[s][p][m], b[s][order - p][n + j][0], b[s][order - p][n + j][1]);
            }
          }
        }
#pragma unroll
        for (int i = 0; i < kM * kTogether * 4; ++i) {
          const int m = i / 4 / kTogether, j = i / 4 % kTogether;
          total[m][n + j][i % 4] += d[m][j][i % 4];
        }
      }
    }
  }

  constexpr int kWide = 8 * kN;
  __shared__ __align__(8) float parts[kGateParts][16][kWide + 8];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    if (m > 0) __syncthreads();
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const int column = n * 8 + lane % 4 * 2;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        *reinterpret_cast<float2*>(&parts[warp][lane / 4 + 8 * r][column]) =
            make_float2(total[m][n][2 * r], total[m][n][2 * r + 1]);
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = threadIdx.x; i < 16 * kWide; i += kThreads) {
      const int row = i / kWide, column = i % kWide;
      float sum = parts[0][row][column];
#pragma unroll
      for (int p = 1; p < kGateParts; ++p) sum += parts[p][row][column];
      const int token = first_token + m * 16 + row, expert = first_expert + column;
      if (token < args.tokens && expert < args.experts) {
        args.logits[static_cast<int64_t>(token) * args.experts + expert] = sum;
      }
    }
  }
}

template <typename T, int kM, int kSteps, bool kVector>
int LaunchTiles(const T* x, const GateArgs& args, cudaStream_t stream) {
  constexpr int kN = 4;
  const dim3 grid((args.experts + 8 * kN - 1) / (8 * kN), (args.tokens + 16 * kM - 1) / (16 * kM));
  return LaunchEarly(GateTilesKernel<T, kM, kN, kSteps, kVector>, grid, kThreads, 0, stream, x,
                     args);
}

template <typename T>
int LaunchMany(const T* x, const GateArgs& args, cudaStream_t stream) {
  const auto in_fours = [](const void* data, int64_t row_elements, size_t element) {
    return reinterpret_cast<uintptr_t>(data) % (4 * element) == 0 && row_elements % 4 == 0;
  };
  if (!in_fours(x, args.stride, sizeof(T)) || !in_fours(args.gate, args.hidden, sizeof(float))) {
    return LaunchTiles<T, 1, 1, false>(x, args, stream);
  }
  if ((args.tokens + 63) / 64 * ((args.experts + 31) / 32) < kManyTiles) {
    return LaunchTiles<T, 1, 2, true>(x, args, stream);
  }
  return LaunchTiles<T, 4, 1, true>(x, args, stream);
}

template <typename T>
int LaunchFew(const T* x, const GateArgs& args, cudaStream_t stream) {
  const int packing =
      args.packed == nullptr ? 0 : (PackedUnits(args.hidden) + kThreads - 1) / kThreads;
  constexpr int kTokens = 4;
  const bool one = args.tokens == 1;
  const dim3 grid(args.experts + packing, one ? 1 : (args.tokens + kTokens - 1) / kTokens);
  const auto kernel = one ? FewGateLogitsKernel<T, 1> : FewGateLogitsKernel<T, kTokens>;
  return LaunchEarly(kernel, grid, kThreads, 0, stream, x, args);
}

}  // namespace

int LaunchGateLogits(const DeviceRows& x, const float* gate, int experts, float* logits,
                     CUstream_st* stream, uint8_t* packed, int64_t packed_stride) {
  int error = 0;
  WithElement(x.dtype, [&](auto type) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    const GateArgs args{x.rows, x.cols, x.stride, gate, experts, logits, packed, packed_stride};
    const auto* rows = static_cast<const T*>(x.data);
    if (x.rows <= kFewTokens) {
      error = LaunchFew(rows, args, stream);
      return;
    }
    error = LaunchMany(rows, args, stream);
    if (error == 0 && packed != nullptr)
      error = LaunchPackRows(x, 0, packed, packed_stride, stream);
  });
  return error;
}

}  // namespace moert::cuda
