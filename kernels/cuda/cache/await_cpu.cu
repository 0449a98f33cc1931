// Waits for the rows that the CPU computes for a call, or takes its experts back (cpu_mailbox.h).
#include <cuda_runtime.h>

#include "kernels/cuda/cache/give_to_cpu.cuh"
#include "kernels/cuda/route/expert_tiles.cuh"

namespace moert::cuda {
namespace {

__device__ CpuAnswer Await(const AwaitCpuArgs& args, CpuCall call) {
  call.deadline += ExtraNs(call, args.owed != 0);
  CpuAnswer found = CpuAnswer::kNone;
  if (call.lost != 0) return found;
  for (int look = 0; look < kMostLooks; ++look) {
    found = AnswerTo(*args.memory.mailbox, call.posted);
    if (!KeepsLooking(call, found, ClockNs())) break;
  }
  return found;
}

/// Fetches the CPU's rows in words of T. A thread has several words under way at once, since they
/// come across the link. Called by all threads.
template <typename T>
__device__ __forceinline__ void FetchRows(const AwaitCpuArgs& args, int pairs) {
  constexpr int kEach = 4;
  constexpr int kFloats = sizeof(T) / sizeof(float);
  const int words = args.cols / kFloats, all = pairs * words;
  const auto* rows = reinterpret_cast<const T*>(args.memory.rows);
  for (int first = threadIdx.x; first < all; first += kEach * kTileThreads) {
    T word[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int i = first + j * kTileThreads;
      if (i < all) word[j] = __ldcv(rows + i);  // never from a cache
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int i = first + j * kTileThreads;
      if (i >= all) continue;
      const int row = i / words;
      float* to = args.out + args.slots[row] * args.out_stride;
      reinterpret_cast<T*>(to)[i - row * words] = word[j];
    }
  }
}

/// Fills the rows that did not come with NaN. Called by all threads.
__device__ __forceinline__ void LoseRows(const AwaitCpuArgs& args, int pairs) {
  const int all = pairs * args.cols;
  for (int i = threadIdx.x; i < all; i += kTileThreads) {
    const int row = i / args.cols;
    args.out[args.slots[row] * args.out_stride + (i - row * args.cols)] =
        __int_as_float(0x7fc00000);
  }
}

__device__ void Count(const AwaitCpuArgs& args, const CpuCall& call, CpuAnswer answer) {
  ServedTally& tally = *args.tally;
  SettleJob(args.call, answer);
  if (answer == CpuAnswer::kRows) {
    tally.on_cpu += call.experts;
    tally.below += call.below;
    return;
  }
  if (call.below > 0) {  // of a failure the host knows
    if (answer == CpuAnswer::kNone) tally.lost += call.experts;
    return;
  }
  if (args.owed != 0) {  // of a failure the host knows
    if (answer == CpuAnswer::kNone) ++tally.taken_back;
    return;
  }
  ++tally.taken_back;
  tally.loads += call.experts;
  tally.bytes += call.bytes;
}

__global__ void __launch_bounds__(kTileThreads)
    AwaitCpuKernel(const __grid_constant__ AwaitCpuArgs args) {
  __shared__ TileScratch<kFewExperts> scratch;
  __shared__ CpuAnswer answer;
  const MakeTilesArgs& tiles = args.tiles;
  const CpuCall call = *args.call;
  const bool owed = args.owed != 0;
  if (call.experts == 0) {
    if (!owed) MakeNoTiles(tiles.table, tiles.shares);
    return;
  }
  if (threadIdx.x == 0) {
    answer = Await(args, call);
    Count(args, call, answer);
  }
  __syncthreads();
  if (answer == CpuAnswer::kRows) {
    const bool aligned = (reinterpret_cast<uintptr_t>(args.out) % sizeof(float4) |
                          args.out_stride % 4 | args.cols % 4) == 0;
    if (aligned) {
      FetchRows<float4>(args, call.pairs);
    } else {
      FetchRows<float>(args, call.pairs);
    }
    if (!owed) MakeNoTiles(tiles.table, tiles.shares);
    return;
  }
  if (owed || call.below > 0) {
    LoseRows(args, call.pairs);
    if (!owed) MakeNoTiles(tiles.table, tiles.shares);
    return;
  }
  const auto of = [&](int e) {
    ExpertTokens tokens{};
    if (e >= tiles.experts) return tokens;
    tokens.handle = tiles.handles[e];
    tokens.count = tiles.groups.counts[e];
    tokens.slots = tiles.groups.sorted + tiles.groups.firsts[e];
    return tokens;
  };
  MakeTiles(tiles, tiles.table, of, scratch);
}

}  // namespace

int LaunchAwaitCpu(const AwaitCpuArgs& args, CUstream_st* stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(kTileThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, AwaitCpuKernel, args);
}

}  // namespace moert::cuda
