// One block per multiprocessor. Its warps split the inputs of 16 output channels at a time. Weights
// are prefetched to shared memory, as many as fit before the preceding kernels have ended. Each
// warp copies the weights that it multiplies.
#include <algorithm>

#include "host/cuda/few_rows_kernel.h"
#include "host/cuda/mma.cuh"
#include "host/cuda/norm_row.cuh"
#include "host/cuda/reduce.cuh"
#include "util/launch.cuh"

namespace moert::host {
namespace {

using gpu::GridDependencySync;
using gpu::LaunchEarly;
using gpu::TriggerDependentLaunch;

constexpr int kThreads = kNormThreads;
constexpr int kWarps = kThreads / 32;
constexpr int kChannels = 16;                   // output channels of a unit
constexpr int kDepth = 256;                     // inputs that a warp multiplies at a time
constexpr int kRound = kWarps * kDepth;         // inputs that a block multiplies at a time
constexpr int kStage = kChannels * kDepth * 2;  // bytes of a warp's weights
// More stages would take so much memory bandwidth that the small kernels before become slower.
constexpr int kMaxStages = 2;
constexpr int kRowPadding = 32;  // against bank conflicts between rows of a fragment
constexpr int kColumn = kFewRows + 1;

constexpr int kSums = kWarps * kChannels * kColumn;  // of one unit, by warp

int64_t SharedBytes(int stages, int64_t rows, int64_t in) {
  return int64_t{kWarps} * stages * kStage + rows * (in + kRowPadding) * 2 +
         (2 * kSums + kFewRows * kWarps) * static_cast<int64_t>(sizeof(float));
}

/// A block's shared memory.
struct Shared {
  unsigned char* stages;  // [warp][stage]
  uint16_t* x;            // [rows][in + kRowPadding]
  float* sums;            // [2][warp][channel][kColumn]
  float* squares;         // [kFewRows][warp]
};

/// Offset in a stage of 8 inputs of a channel. The 16-byte pieces of odd channels are swizzled, so
/// that a fragment's lanes have few bank conflicts.
__device__ __forceinline__ int PieceAt(int channel, int piece) {
  return channel * (kDepth * 2) + (piece ^ channel % 2 * 4) * 16;
}

/// Copies a warp's weights: of 16 channels from `channel` on, kDepth inputs from `k` on. Each time
/// the lanes copy neighbouring inputs of one channel.
__device__ __forceinline__ void CopyWeights(const FewRowsProduct& p, int channel, int k,
                                            uint64_t policy, unsigned char* stage) {
  const int lane = threadIdx.x % 32, at = k + lane * 8;
  const uint16_t* const from = p.w + static_cast<int64_t>(channel) * p.in + at;
  const uint32_t to = SharedAddress(stage);
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    const bool inside = at < p.in && channel + c < p.out;
    CopyAsync(to + PieceAt(c, lane), inside ? from + static_cast<int64_t>(c) * p.in : p.w,
              inside ? 16 : 0, policy);
  }
}

/// Independent sums, so that a tensor core operation need not wait for the one before.
constexpr int kChains = 4;
using Sums = float[kChains][4];

/// Adds the products of what CopyWeights copied.
__device__ __forceinline__ void MultiplyStage(const FewRowsProduct& p, int k,
                                              const unsigned char* stage, const uint16_t* x,
                                              Sums& sums) {
  const int lane = threadIdx.x % 32, row = lane / 4, at = k + lane % 4 * 8;
  const uint16_t* const from = x + row * (p.in + kRowPadding) + at;
#pragma unroll
  for (int s = 0; s < kDepth / 32; ++s) {
    if (k + s * 32 >= p.in) break;
    const unsigned char* const weights = stage + PieceAt(row, s * 4 + lane % 4);
    const uint4 low = *reinterpret_cast<const uint4*>(weights);
    const uint4 high = *reinterpret_cast<const uint4*>(weights + 8 * kDepth * 2);
    uint4 b = make_uint4(0, 0, 0, 0);
    if (row < p.rows && at + s * 32 < p.in) b = *reinterpret_cast<const uint4*>(from + s * 32);
    MultiplyEight(sums[s % kChains], low, high, b);
  }
}

__device__ __forceinline__ void LoadRows(const FewRowsProduct& p, uint16_t* x) {
  for (int r = 0; r < p.rows; ++r) {
    const uint16_t* from = p.x + static_cast<int64_t>(r) * p.in;
    uint16_t* to = x + r * (p.in + kRowPadding);
    for (int i = threadIdx.x * 8; i < p.in; i += 2 * kThreads * 8) {
      const int j = i + kThreads * 8;
      const uint4 first = __ldcg(reinterpret_cast<const uint4*>(from + i));
      const uint4 second =
          j < p.in ? __ldcg(reinterpret_cast<const uint4*>(from + j)) : make_uint4(0, 0, 0, 0);
      *reinterpret_cast<uint4*>(to + i) = first;
      if (j < p.in) *reinterpret_cast<uint4*>(to + j) = second;
    }
  }
}

/// Loads the rows times the norm's weight; the norm's scale is applied later, from `squares`, each
/// warp's sum of squares. kRows: rows that are loaded together.
template <int kRows>
__device__ __forceinline__ void LoadNormed(const FewRowsProduct& p, const Shared& shared) {
  constexpr int kSpan = 2 * kThreads * 4;  // channels of a row that are loaded at a time
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const NormedRows& n = p.normed;
  float squares[kRows] = {};
  for (int from = 0; from < p.in; from += kSpan) {
    float4 v[kRows][2], d[kRows][2], weight[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int i = from + (j * kThreads + static_cast<int>(threadIdx.x)) * 4;
      const float4 none = make_float4(0, 0, 0, 0);
      weight[j] = i < p.in ? *reinterpret_cast<const float4*>(n.weight + i) : none;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const bool inside = i < p.in && r < p.rows;
        const int64_t at = static_cast<int64_t>(r) * p.in + i;
        v[r][j] = inside ? __ldcg(reinterpret_cast<const float4*>(n.residual + at)) : none;
        d[r][j] = inside && n.delta != nullptr
                      ? __ldcg(reinterpret_cast<const float4*>(n.delta + at))
                      : none;
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int part = j * kThreads + static_cast<int>(threadIdx.x), i = from + part * 4;
        if (i >= p.in || r >= p.rows) continue;
        float4& u = v[r][j];
        u = make_float4(u.x + d[r][j].x, u.y + d[r][j].y, u.z + d[r][j].z, u.w + d[r][j].w);
        squares[r] = __fmaf_rn(u.x, u.x, squares[r]);
        squares[r] = __fmaf_rn(u.y, u.y, squares[r]);
        squares[r] = __fmaf_rn(u.z, u.z, squares[r]);
        squares[r] = __fmaf_rn(u.w, u.w, squares[r]);
        *reinterpret_cast<uint2*>(shared.x + r * (p.in + kRowPadding) + i) =
            make_uint2(ToBf16Pair(u.x * weight[j].x, u.y * weight[j].y),
                       ToBf16Pair(u.z * weight[j].z, u.w * weight[j].w));
        // The blocks share the work of storing the sum.
        if (n.delta != nullptr && i / 4 % gridDim.x == blockIdx.x) {
          *reinterpret_cast<float4*>(n.sum + static_cast<int64_t>(r) * p.in + i) = u;
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float sum = WarpSum(squares[r]);
    if (lane == 0) shared.squares[r * kWarps + warp] = sum;
  }
}

template <int kRows>
__device__ __forceinline__ void LoadInput(const FewRowsProduct& p, const Shared& shared) {
  if (p.x != nullptr) {
    LoadRows(p, shared.x);
  } else {
    LoadNormed<kRows>(p, shared);
  }
}

/// This thread's place in a unit's results.
struct Place {
  int row;
  int channel;  // of the matrix
  bool valid;
};
__device__ __forceinline__ Place PlaceIn(const FewRowsProduct& p, int unit) {
  const int t = threadIdx.x;
  const int channel = unit * kChannels + t % kChannels, row = t / kChannels;
  return {row, channel, row < p.rows && channel < p.out};
}

/// Stores a warp's products of a unit to shared memory, for AddSums.
__device__ __forceinline__ void StoreSums(const Sums& parts, float* sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* to = sums + (warp * kChannels + lane / 4) * kColumn + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[i / 2 * 8 * kColumn + i % 2] = (parts[0][i] + parts[1][i]) + (parts[2][i] + parts[3][i]);
  }
}

__device__ __forceinline__ float AddSums(const float* sums) {
  const int t = threadIdx.x;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    total += sums[(w * kChannels + t % kChannels) * kColumn + t / kChannels];
  }
  return total;
}

/// The norm's scale of a row, which LoadNormed leaves out; 1 without a norm.
__device__ __forceinline__ float ScaleOf(const FewRowsProduct& p, const Shared& shared, int row) {
  if (p.x != nullptr || row >= p.rows) return 1;
  float squares = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) squares += shared.squares[row * kWarps + w];
  return 1.0f / sqrtf(squares / static_cast<float>(p.in) + p.normed.eps);
}

/// Normalizes the product in the block that ends last.
__device__ __forceinline__ void NormWhenComplete(const FewRowsProduct& p, float* parts) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(p.ticket, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  NormRow(p.then, 0, parts);
  if (threadIdx.x == 0) *p.ticket = 0;
}

/// Prefetches the weight of the norm after the product into L2.
__device__ __forceinline__ void PrefetchNorm(const FewRowsProduct& p) {
  constexpr int kLine = 128;  // bytes of the L2 cache
  constexpr int kFloats = kLine / static_cast<int>(sizeof(float));
  for (int i = threadIdx.x * kFloats; i < p.then.width; i += kThreads * kFloats) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p.then.weight + i));
  }
}

template <int kStages, int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    FewRowsKernel(const __grid_constant__ FewRowsProduct p) {
  extern __shared__ __align__(16) unsigned char memory[];
  TriggerDependentLaunch();
  Shared shared;
  shared.stages = memory;
  shared.x = reinterpret_cast<uint16_t*>(memory + kWarps * kStages * kStage);
  shared.sums = reinterpret_cast<float*>(shared.x + p.rows * (p.in + kRowPadding));
  shared.squares = shared.sums + 2 * kSums;
  const int warp = threadIdx.x / 32;
  unsigned char* const stages = shared.stages + warp * kStages * kStage;
  const int grid = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const int units = (p.out + kChannels - 1) / kChannels, rounds = (p.in + kRound - 1) / kRound;
  const int items = (units - block + grid - 1) / grid * rounds;

  const uint64_t policy = EvictFirst();
  // The item that is copied next, `kStages` ahead of the one that is multiplied.
  int next = 0, next_unit = block, next_round = 0;
  const auto copy = [&] {
    if (next < items) {
      CopyWeights(p, next_unit * kChannels, next_round * kRound + warp * kDepth, policy,
                  stages + next % kStages * kStage);
      if (++next_round == rounds) next_round = 0, next_unit += grid;
    }
    ++next;
    CommitCopies();
  };
#pragma unroll
  for (int i = 0; i < kStages; ++i) copy();
  if (p.ticket != nullptr) PrefetchNorm(p);
  GridDependencySync();
  LoadInput<kRows>(p, shared);
  __syncthreads();
  const float scale = ScaleOf(p, shared, threadIdx.x / kChannels);

  int item = 0;
  for (int unit = block; unit < units; unit += grid) {
    const Place place = PlaceIn(p, unit);
    float* const y = p.y + static_cast<int64_t>(place.row) * p.out + place.channel;
    const float bias = place.valid && p.bias != nullptr ? p.bias[place.channel] : 0;
    const float before = place.valid && p.accumulate ? __ldcg(y) : 0;
    Sums parts = {};
    for (int round = 0; round < rounds; ++round, ++item) {
      WaitForCopies<kStages - 1>();
      __syncwarp();
      MultiplyStage(p, round * kRound + warp * kDepth, stages + item % kStages * kStage, shared.x,
                    parts);
      __syncwarp();
      copy();
    }
    float* const sums = shared.sums + unit / grid % 2 * kSums;
    StoreSums(parts, sums);
    __syncthreads();
    if (place.valid) *y = before + (AddSums(sums) * scale + bias);
  }
  if (p.ticket != nullptr) NormWhenComplete(p, shared.sums);
}

template <int kRows>
auto KernelOf(int stages) {
  return stages == 1 ? FewRowsKernel<1, kRows> : FewRowsKernel<2, kRows>;
}

/// Dynamic shared memory that a block may ask for; the kernel itself uses a little.
int64_t SharedLimit() {
  return gpu::DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - 256;
}

}  // namespace

bool FewRowsRun(int64_t rows, int64_t in) {
  return rows <= kFewRows && in % 8 == 0 && SharedBytes(1, rows, in) <= SharedLimit();
}

int LaunchFewRows(const FewRowsProduct& p, CUstream_st* stream) {
  if (p.rows < 1 || !FewRowsRun(p.rows, p.in) || (p.ticket != nullptr && p.rows > 1)) {
    return static_cast<int>(cudaErrorInvalidValue);
  }
  const int units = (p.out + kChannels - 1) / kChannels, rounds = (p.in + kRound - 1) / kRound;
  const int grid = std::min(units, gpu::DeviceAttribute(cudaDevAttrMultiProcessorCount));
  int stages = std::min(kMaxStages, (units + grid - 1) / grid * rounds);
  while (SharedBytes(stages, p.rows, p.in) > SharedLimit()) --stages;
  const auto kernel = p.rows == 1 ? KernelOf<1>(stages) : KernelOf<kFewRows>(stages);
  const auto bytes = static_cast<int>(SharedBytes(stages, p.rows, p.in));
  // Maximizes shared memory per multiprocessor: kernels that are launched early then fit beside
  // this one.
  int error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == 0) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
  }
  if (error != 0) return error;
  return LaunchEarly(kernel, dim3(grid), kThreads, bytes, stream, p);
}

}  // namespace moert::host
