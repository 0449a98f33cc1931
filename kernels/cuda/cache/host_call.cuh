// The decision of a call that the host multiplies (Engine::Fetch): it is given ids, and returns the
// slots of their experts. Most of its time is instruction fetch, so its kernel has no code for
// other calls.
#ifndef MOERT_KERNELS_CUDA_CACHE_HOST_CALL_CUH_
#define MOERT_KERNELS_CUDA_CACHE_HOST_CALL_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/cache/serve_call.cuh"
#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/primitives/launch.cuh"

namespace moert::cuda {

/// Sets what such calls never have to constants.
__device__ __forceinline__ ServeMissesArgs HostCallOf(ServeMissesArgs args) {
  args.counts = nullptr;
  args.shared = nullptr;
  args.scores = nullptr;
  args.window = 0;
  args.lenders = SlotLenders{};
  args.answers_low = 0;
  args.low = LowVersions{};
  args.groups = SlotGroups{};
  args.makes_tiles = 0;
  return args;
}

/// A thread for each expert, and one more for a job of the CPU (PostGiven).
inline int HostCallThreads(int experts) { return (experts + 32) / 32 * 32; }

/// The pairs of the call that want the thread's expert. All threads read the same ids together.
__device__ __forceinline__ int CountOf(const ServeMissesArgs& args) {
  int count = 0;
#pragma unroll 8
  for (int i = 0; i < args.pairs; ++i) {
    count += args.ids[i] == static_cast<int32_t>(threadIdx.x) ? 1 : 0;
  }
  return threadIdx.x < args.experts ? count : 0;
}

/// The slot number of the expert of pair i. -1: it has no slot; -2: the pair names no expert.
__device__ __forceinline__ int32_t NumberOf(const ServeMissesArgs& args, const int32_t* numbers,
                                            int i) {
  const int32_t id = args.ids[i];
  return id >= 0 && id < args.experts ? numbers[id] : -2;
}
/// A slot for pair i, whose expert has none: one that no other pair of its token has, since kernels
/// that group pairs by expert expect a token to name each slot at most once.
__device__ __forceinline__ int32_t SpareNumber(const ServeMissesArgs& args, const int32_t* numbers,
                                               int i) {
  const int k = args.pairs / args.tokens, first = i - i % k;
  int before = 0;  // earlier pairs of the token that have none, either
  for (int j = first; j < i; ++j) before += NumberOf(args, numbers, j) == -1 ? 1 : 0;
  for (int32_t number = 0;; ++number) {
    bool taken = false;
    for (int j = first; j < first + k; ++j) taken |= NumberOf(args, numbers, j) == number;
    if (!taken && before-- == 0) return number;  // below k
  }
}

/// Stores the slots of the call's experts. at: the address of the thread's expert's slot, or null;
/// numbers: scratch, [experts]. Called by all threads.
__device__ __forceinline__ void GiveSlots(const ServeMissesArgs& args, const uint8_t* at,
                                          int32_t* numbers) {
  const int e = threadIdx.x;
  __syncthreads();
  if (e < args.experts) {
    // Exact, as the distance is a multiple of the stride, and faster than an integer division.
    const auto distance = static_cast<double>(at - args.base);
    const int32_t number = at == nullptr ? -1 : __double2int_rn(distance * args.slots_a_byte);
    numbers[e] = number;
    args.table[e] = number;
  }
  __syncthreads();
  if (args.found == nullptr) return;
  for (int i = e; i < args.pairs; i += static_cast<int>(blockDim.x)) {
    const int32_t number = NumberOf(args, numbers, i);
    args.found[i] = number >= 0                          ? number
                    : number == -1 && args.any_slot != 0 ? SpareNumber(args, numbers, i)
                                                         : -1;
  }
}

/// The whole decision. args: HostCallOf `given`. Called by all threads.
__device__ __forceinline__ void DecideHostCall(const ServeMissesArgs& args,
                                               const ServeMissesArgs& given, ServeTable& table) {
  __shared__ CallSums sums;
  __builtin_assume(args.ids != nullptr);
  const Known known = ReadKnown</*kPlain=*/true>(args);
  ShareKnown(args, known, table);
  GridDependencySync();
  const int count = CountOf(args);
  const CallPairs<int32_t> no_groups{};
  const Decided decided =
      DecideSlots</*kPlain=*/true>(args, given, known, count, no_groups, LowCall{}, sums, table);
  GiveSlots(args, decided.placed.at, table.counts);
  // Only calls of one token are predicted, and these need no groups.
  __builtin_assume(args.wanted == nullptr || args.tokens == 1);
  EndDecision(args, known, count, no_groups, decided, /*lends=*/false, sums);
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_HOST_CALL_CUH_
