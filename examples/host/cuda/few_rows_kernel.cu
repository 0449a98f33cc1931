// One block a multiprocessor. Its warps share the inputs of 16 output channels at a time; weights
// are copied to shared memory ahead, as many as fit before the kernels in front have ended. A lane
// copies what it multiplies itself.
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
constexpr int kRound = kWarps * kDepth;         // and the block
constexpr int kChannelBytes = kDepth * 2 + 64;  // no two channels of a fragment in one bank
constexpr int kStage = kChannels * kChannelBytes;
// More take so much of the memory's rate that the small kernels in front become slower.
constexpr int kMaxStages = 2;
constexpr int kRowPadding = 32;  // no two rows of a fragment in one bank
constexpr int kColumn = kFewRows + 1;

constexpr int kSums = kWarps * kChannels * kColumn;  // of one unit, by warp

int64_t SharedBytes(int stages, int64_t rows, int64_t in) {
  return int64_t{kWarps} * stages * kStage + rows * (in + kRowPadding) * 2 +
         (2 * kSums + kFewRows * kWarps) * static_cast<int64_t>(sizeof(float));
}

/// What a block has in shared memory.
struct Shared {
  unsigned char* stages;  // [warp][stage]
  uint16_t* x;            // [rows][in + kRowPadding]
  float* sums;            // [2][warp][channel][kColumn]
  float* squares;         // [kFewRows][warp]
};

/// Copies a warp's weights: of 16 channels from `channel` on, kDepth inputs from `k` on, those that
/// there are. What has been copied is told of at `full`.
__device__ __forceinline__ void CopyWeights(const FewRowsProduct& p, int channel, int k,
                                            uint64_t policy, unsigned char* stage, uint64_t* full) {
  const int lane = threadIdx.x % 32, bytes = min(max(p.in - k, 0), kDepth) * 2;
  const int channels = bytes == 0 ? 0 : min(max(p.out - channel, 0), kChannels);
  const uint16_t* const from = p.w + static_cast<int64_t>(channel) * p.in + k;
  const uint32_t to = SharedAddress(stage);
#if __CUDA_ARCH__ >= 900
  // By the copy engine: copies of threads would stand in front of what other kernels load.
  if (lane == 0) ArriveExpecting(full, channels * bytes);
  __syncwarp();
  if (lane < channels) {
    BulkCopy(to + lane * kChannelBytes, from + static_cast<int64_t>(lane) * p.in, bytes, full,
             policy);
  }
#else
  for (int c = 0; c < channels; ++c) {
    if (lane * 16 >= bytes) continue;
    CopyAsync(to + c * kChannelBytes + lane * 16, from + static_cast<int64_t>(c) * p.in + lane * 8,
              16, policy);
  }
#endif
}
/// Behind each CopyWeights, and in its place where there is nothing to copy.
__device__ __forceinline__ void CommitWeights() {
#if __CUDA_ARCH__ < 900
  CommitCopies();
#endif
}
/// Until the copies of a stage have ended, which took it for the n-th time: all but the last
/// kStages - 1.
template <int kStages>
__device__ __forceinline__ void AwaitWeights(uint64_t* full, int n) {
#if __CUDA_ARCH__ >= 900
  AwaitPhase(full, n % 2);
#else
  WaitForCopies<kStages - 1>();
#endif
  __syncwarp();
}

/// Sums of products, several so that tensor cores need not wait for the one before.
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
    const unsigned char* const weights = stage + row * kChannelBytes + (s * 4 + lane % 4) * 16;
    uint4 low = *reinterpret_cast<const uint4*>(weights);
    uint4 high = *reinterpret_cast<const uint4*>(weights + 8 * kChannelBytes);
    uint4 b = make_uint4(0, 0, 0, 0);
    const bool inside = at + s * 32 < p.in;  // else nothing was copied there
    if (!inside) low = high = b;
    if (row < p.rows && inside) b = *reinterpret_cast<const uint4*>(from + s * 32);
    MultiplyEight(sums[s % kChains], low, high, b);
  }
}

/// A rehearsal reads weights instead, here and below.
__device__ __forceinline__ void LoadRows(const FewRowsProduct& p, bool real, uint16_t* x) {
  for (int r = 0; r < p.rows; ++r) {
    const uint16_t* from = (real ? p.x : p.w) + static_cast<int64_t>(r) * p.in;
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

/// The rows times the norm's weight; their scales follow from `squares`, each warp's sum of
/// squares. kRows: so many are under way together.
template <int kRows>
__device__ __forceinline__ void LoadNormed(const FewRowsProduct& p, bool real,
                                           const Shared& shared) {
  constexpr int kSpan = 2 * kThreads * 4;  // of a row at a time
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const NormedRows& n = p.normed;
  const auto* const weights = reinterpret_cast<const float*>(p.w);
  const float* const residual = real ? n.residual : weights;
  const float* const delta = real || n.delta == nullptr ? n.delta : weights;
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
        v[r][j] = inside ? __ldcg(reinterpret_cast<const float4*>(residual + at)) : none;
        d[r][j] =
            inside && delta != nullptr ? __ldcg(reinterpret_cast<const float4*>(delta + at)) : none;
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
        if (real && delta != nullptr && i / 4 % gridDim.x == blockIdx.x) {
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

/// Leaves a warp's products of a unit where the block's are added.
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

/// What a row's products are multiplied by, where its norm was left out.
__device__ __forceinline__ float ScaleOf(const FewRowsProduct& p, const Shared& shared, int row) {
  if (p.x != nullptr || row >= p.rows) return 1;
  float squares = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) squares += shared.squares[row * kWarps + w];
  return 1.0f / sqrtf(squares / static_cast<float>(p.in) + p.normed.eps);
}

/// The norm behind the product, by the block that ends last. A rehearsal stores nothing.
__device__ __forceinline__ void NormWhenComplete(const FewRowsProduct& p, bool real, float* parts) {
  __shared__ bool last;
  __syncthreads();
  if (real) {
    if (threadIdx.x == 0) {
      __threadfence();
      last = atomicAdd(p.ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
  }
  NormArgs then = p.then;
  if (!real) {
    then.residual = const_cast<float*>(reinterpret_cast<const float*>(p.w));
    then.delta = nullptr;
    then.f32 = nullptr;
    then.bf16 = nullptr;
  }
  NormRow(then, 0, parts);
  if (real && threadIdx.x == 0) *p.ticket = 0;
}

constexpr int kLine = 128;  // bytes of the L2 cache

/// Whether the weights are as large as all that is read in their place.
__device__ __forceinline__ bool CanRehearse(const FewRowsProduct& p) {
  return p.out >= 2 * p.rows && (p.ticket == nullptr || p.in >= 2);
}

template <int kStages, int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    FewRowsKernel(const __grid_constant__ FewRowsProduct p) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ uint64_t full[kWarps][kStages];
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
  if (threadIdx.x % 32 == 0) {
    for (uint64_t& f : full[warp]) InitPhases(&f);
  }
  __syncwarp();
  // The item that is copied next: `kStages` ahead of the one multiplied.
  int next = 0, next_unit = block, next_round = 0;
  const auto copy = [&] {
    if (next < items) {
      CopyWeights(p, next_unit * kChannels, next_round * kRound + warp * kDepth, policy,
                  stages + next % kStages * kStage, &full[warp][next % kStages]);
      if (++next_round == rounds) next_round = 0, next_unit += grid;
    }
    ++next;
    CommitWeights();
  };
#pragma unroll
  for (int i = 0; i < kStages; ++i) copy();
  if (p.ticket != nullptr) {
    constexpr int kFloats = kLine / static_cast<int>(sizeof(float));
    for (int i = threadIdx.x * kFloats; i < p.then.width; i += kThreads * kFloats) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(p.then.weight + i));
    }
  }
  // First a rehearsal, while the kernels in front run: it brings the instructions.
#pragma unroll 1
  for (int pass = CanRehearse(p) ? 0 : 1; pass < 2; ++pass) {
    const bool real = pass == 1;
    if (real) GridDependencySync();
    if (p.x != nullptr) {
      LoadRows(p, real, shared.x);
    } else {
      LoadNormed<kRows>(p, real, shared);
    }
    __syncthreads();
    const float scale = ScaleOf(p, shared, threadIdx.x / kChannels);

    int item = 0;
    for (int unit = block; unit < (real ? units : block + 1); unit += grid) {
      const Place place = PlaceIn(p, unit);
      float* const y = p.y + static_cast<int64_t>(place.row) * p.out + place.channel;
      const float bias = place.valid && p.bias != nullptr ? p.bias[place.channel] : 0;
      const float before = real && place.valid && p.accumulate ? __ldcg(y) : 0;
      Sums parts = {};
      for (int round = 0; round < (real ? rounds : 1); ++round, ++item) {
        if (real) AwaitWeights<kStages>(&full[warp][item % kStages], item / kStages);
        // The copies are under way in a rehearsal: it multiplies what lies elsewhere.
        const unsigned char* const stage =
            real ? stages + item % kStages * kStage
                 : reinterpret_cast<const unsigned char*>(shared.sums);
        MultiplyStage(p, round * kRound + warp * kDepth, stage, shared.x, parts);
        __syncwarp();
        if (real) copy();
      }
      if (!real) __syncthreads();
      float* const sums = shared.sums + unit / grid % 2 * kSums;
      StoreSums(parts, sums);
      __syncthreads();
      const float y_now = before + (AddSums(sums) * scale + bias);
      if (real && place.valid) *y = y_now;
    }
    if (p.ticket != nullptr) NormWhenComplete(p, real, shared.sums);
    if (!real) __syncthreads();
  }
}

template <int kRows>
auto KernelOf(int stages) {
  return stages == 1 ? FewRowsKernel<1, kRows> : FewRowsKernel<2, kRows>;
}

/// What a block may ask for: a little is the kernel's own.
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
  // The most shared memory a multiprocessor can have: what is launched early then finds room
  // beside.
  int error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == 0) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
  }
  if (error != 0) return error;
  return LaunchEarly(kernel, dim3(grid), kThreads, bytes, stream, p);
}

}  // namespace moert::host
