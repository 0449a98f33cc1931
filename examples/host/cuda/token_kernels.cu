#include "host/cuda/reduce.cuh"
#include "host/cuda/token_kernels.h"
#include "util/launch.cuh"

namespace moert::host {
namespace {

using gpu::GridDependencySync;
using gpu::LaunchEarly;
using gpu::TriggerDependentLaunch;

constexpr int kThreads = 256;
constexpr int kRowThreads = 1024;  // of kernels with one block per row of logits
constexpr int kBestBlocks = 64;
static_assert(kBestBlocks <= kThreads);

__global__ void EmbedKernel(const RowInput* inputs, const uint16_t* table, int width, float* out) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t row = blockIdx.x;
  const uint16_t* from = table + static_cast<int64_t>(inputs[row].token) * width;
  for (int i = threadIdx.x; i < width; i += kThreads) out[row * width + i] = FromBf16(from[i]);
}

__device__ float Activated(int kind, float x) {
  if (kind == 0) return x / (1.0f + expf(-x));
  if (kind == 1) return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
  return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}

__global__ void GatedActivationKernel(const float* gate_up, int kind, int width, uint16_t* out) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t row = blockIdx.x;
  const float* gate = gate_up + row * 2 * width;
  const int i = blockIdx.y * kThreads + threadIdx.x;
  if (i < width) out[row * width + i] = ToBf16(Activated(kind, gate[i]) * gate[width + i]);
}

__global__ void AddBiasKernel(float* y, const float* bias, int width) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int i = blockIdx.y * kThreads + threadIdx.x;
  if (i < width) y[static_cast<int64_t>(blockIdx.x) * width + i] += bias[i];
}

struct Candidate {
  float logit;
  int32_t index;  // kNotANumber beats everything

  __device__ bool Beats(const Candidate& other) const {
    if (index == kNotANumber || other.index == kNotANumber) return index == kNotANumber;
    if (index < 0 || other.index < 0) return index >= 0;
    return logit > other.logit || (logit == other.logit && index < other.index);
  }
};

__device__ __forceinline__ Candidate BestOfWarp(Candidate mine) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const Candidate other = {__shfl_xor_sync(0xffffffffu, mine.logit, lanes),
                             __shfl_xor_sync(0xffffffffu, mine.index, lanes)};
    if (other.Beats(mine)) mine = other;
  }
  return mine;
}

/// The best over all threads, in the first warp. by_warp: [kThreads / 32], used once.
__device__ __forceinline__ Candidate BestOfBlock(Candidate mine, Candidate* by_warp) {
  mine = BestOfWarp(mine);
  if (threadIdx.x % 32 == 0) by_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  const int warp = threadIdx.x % 32;
  return BestOfWarp(warp < kThreads / 32 ? by_warp[warp] : Candidate{-INFINITY, kNotFinite});
}

/// Scratch that the blocks of one row share.
struct BestScratch {
  Candidate found[kBestBlocks];
  uint32_t ticket;  // blocks that have ended
  uint32_t unused;
};

/// kBestBlocks blocks per row; the one that ends last combines their results.
__global__ void __launch_bounds__(kThreads)
    BestKernel(const float* logits, int vocabulary, BestScratch* scratch, int32_t* best) {
  __shared__ Candidate by_warp[2][kThreads / 32];
  __shared__ bool last;
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t row = blockIdx.y;
  const float* from = logits + row * vocabulary;
  scratch += row;
  Candidate mine = {-INFINITY, kNotFinite};
#pragma unroll 4
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < vocabulary; i += kBestBlocks * kThreads) {
    const float v = from[i];
    const Candidate other = {v, isnan(v) ? kNotANumber : v == -INFINITY ? kNotFinite : i};
    if (other.Beats(mine)) mine = other;
  }
  mine = BestOfBlock(mine, by_warp[0]);
  if (threadIdx.x == 0) {
    scratch->found[blockIdx.x] = mine;
    __threadfence();
    last = atomicAdd(&scratch->ticket, 1u) == kBestBlocks - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  mine = {-INFINITY, kNotFinite};
  if (threadIdx.x < kBestBlocks) {
    const Candidate* const other = scratch->found + threadIdx.x;
    mine = {__ldcg(&other->logit), __ldcg(&other->index)};
  }
  mine = BestOfBlock(mine, by_warp[1]);
  if (threadIdx.x != 0) return;
  best[row] = mine.logit == INFINITY ? kNotFinite : mine.index;
  scratch->ticket = 0;
}

__global__ void __launch_bounds__(kRowThreads)
    ScoreKernel(const float* logits, const int32_t* targets, int vocabulary, double* nll) {
  __shared__ double by_warp[kRowThreads / 32];
  __shared__ float highest_by_warp[kRowThreads / 32];
  TriggerDependentLaunch();
  GridDependencySync();
  const float* row = logits + static_cast<int64_t>(blockIdx.x) * vocabulary;
  float highest = -INFINITY;
  for (int i = threadIdx.x; i < vocabulary; i += kRowThreads) highest = fmaxf(highest, row[i]);
  highest = WarpMax(highest);
  if (threadIdx.x % 32 == 0) highest_by_warp[threadIdx.x / 32] = highest;
  __syncthreads();
  highest = WarpMax(highest_by_warp[threadIdx.x % 32]);
  double sum = 0;
  for (int i = threadIdx.x; i < vocabulary; i += kRowThreads) sum += expf(row[i] - highest);
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
  if (threadIdx.x % 32 == 0) by_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kRowThreads / 32; ++w) sum += by_warp[w];
  nll[blockIdx.x] = log(sum) + highest - row[targets[blockIdx.x]];
}

dim3 RowsAndChannels(int rows, int width) { return dim3(rows, (width + kThreads - 1) / kThreads); }

}  // namespace

int LaunchEmbed(const RowInput* inputs, const uint16_t* table, int rows, int width, float* out,
                CUstream_st* stream) {
  return LaunchEarly(EmbedKernel, dim3(rows), kThreads, 0, stream, inputs, table, width, out);
}

int LaunchGatedActivation(const float* gate_up, int activation, int rows, int width, uint16_t* out,
                          CUstream_st* stream) {
  return LaunchEarly(GatedActivationKernel, RowsAndChannels(rows, width), kThreads, 0, stream,
                     gate_up, activation, width, out);
}

int LaunchAddBias(float* y, const float* bias, int rows, int width, CUstream_st* stream) {
  return LaunchEarly(AddBiasKernel, RowsAndChannels(rows, width), kThreads, 0, stream, y, bias,
                     width);
}

int64_t BestBytes(int64_t rows) { return rows * static_cast<int64_t>(sizeof(BestScratch)); }

int LaunchBest(const float* logits, int rows, int vocabulary, std::byte* scratch, int32_t* best,
               CUstream_st* stream) {
  return LaunchEarly(BestKernel, dim3(kBestBlocks, rows), kThreads, 0, stream, logits, vocabulary,
                     reinterpret_cast<BestScratch*>(scratch), best);
}

int LaunchScore(const float* logits, const int32_t* targets, int rows, int vocabulary, double* nll,
                CUstream_st* stream) {
  return LaunchEarly(ScoreKernel, dim3(rows), kRowThreads, 0, stream, logits, targets, vocabulary,
                     nll);
}

}  // namespace moert::host
