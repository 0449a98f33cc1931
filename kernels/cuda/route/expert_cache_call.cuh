// One call under the expert-cache rule. One CTA carries it out, since the rule is defined over the
// whole batch. Warps take tokens in parallel; steps in which a token depends on the ones before it
// (the caps of requests with several rows, the second pass) are done in order by one warp.
#ifndef MOERT_KERNELS_CUDA_ROUTE_EXPERT_CACHE_CALL_CUH_
#define MOERT_KERNELS_CUDA_ROUTE_EXPERT_CACHE_CALL_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/route/add_to_tally.cuh"
#include "kernels/cuda/route/expert_cache.h"
#include "kernels/cuda/route/expert_cache_token.cuh"

namespace moert::cuda::expert_cache {

/// Sets of experts: the resident ones, the set C, and fetched ones that the second pass must keep.
struct Marks {
  static constexpr int kWords = kFewExperts / 32;
  uint32_t resident[kWords], top[kWords], anchored[kWords];
};

/// Marks which of 32 adjacent experts are resident, and clears their other marks. Called by a warp.
__device__ __forceinline__ void MarkThere(bool there, int word, Marks& marks) {
  const uint32_t bits = __ballot_sync(~0U, there);
  if (threadIdx.x % 32 != 0 || word >= Marks::kWords) return;
  marks.resident[word] = bits;
  marks.top[word] = marks.anchored[word] = 0;
}

/// Drops a listed prefetch that has not begun. Returns its state before.
__device__ __forceinline__ int32_t CloseListed(PrefetchedRecord& record) {
  return atomicCAS(&record.state, kPrefetchListed, kPrefetchDropped);
}
/// Marks a record whose prefetch has begun as resident, and its victim, if there is one, as absent.
__device__ __forceinline__ void MarkBegun(int comes, int victim, Marks& marks) {
  if (victim >= 0) atomicAnd(&marks.resident[victim / 32], ~(1U << (victim % 32)));
  atomicOr(&marks.resident[comes / 32], 1U << (comes % 32));
}

/// Shared memory of Substitute, in which the first kWarps warps work.
template <int kPerLane, int kWarps>
struct CallScratch {
  int users[32 * kPerLane];
  float group_keys[kWarps][32 * kPerLane], group_ranks[kWarps][32 * kPerLane];
};

/// The second pass, over the tokens that still fetch experts. Called by a warp.
template <int kPerLane>
__device__ __forceinline__ void GroupFetched(const ExpertCacheArgs& args, int tokens, int lane,
                                             uint32_t* resident, uint32_t* top, uint32_t* anchored,
                                             int* users) {
  OpenAccount account(args, lane);
  for (int t = 0; t < tokens; ++t) {
    if (args.scratch[t].taken == args.scratch[t].slots) continue;
    Token<kPerLane> token(args, t, lane);
    token.GroupWhatIsFetched(resident, top, anchored, users, account.Of(t));
  }
}

/// The second pass, which begins with a barrier. Called by all threads.
template <int kPerLane, int kWarps>
__device__ __forceinline__ void SubstituteFetched(const ExpertCacheArgs& args, int tokens, int warp,
                                                  int lane, Marks& marks,
                                                  CallScratch<kPerLane, kWarps>& scratch) {
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * args.routing.top_k; i += blockDim.x) {
    atomicAdd(&scratch.users[args.ids[i]], 1);
  }
  __syncthreads();
  if (warp == 0) {
    GroupFetched<kPerLane>(args, tokens, lane, marks.resident, marks.top, marks.anchored,
                           scratch.users);
  }
}

/// Turns the model's choice into the rule's. `marks`: only resident experts are marked yet.
/// `parallel`: no account has two of the rows. Returns whether any expert was substituted. Called
/// by all threads, between two barriers.
template <int kPerLane, int kWarps>
__device__ __forceinline__ bool Substitute(const ExpertCacheArgs& args, bool parallel, Marks& marks,
                                           CallScratch<kPerLane, kWarps>& scratch) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
  const int tokens = args.tokens;
  uint32_t* const resident = marks.resident;
  uint32_t* const top = marks.top;
  const int first = warp < kWarps ? warp : tokens;
  for (int t = first; t < tokens; t += kWarps) {
    Token<kPerLane> token(args, t, lane);
    token.View(scratch.group_keys[warp], scratch.group_ranks[warp], top);
    __syncwarp();
    if (!parallel) continue;
    OpenAccount account(args, lane);
    token.Enter(account.Of(t));
  }
  if (args.second_pass != 0) {
    for (int e = threadIdx.x; e < 32 * kPerLane; e += blockDim.x) scratch.users[e] = 0;
  }
  __syncthreads();
  if (!parallel && warp == 0) {
    OpenAccount account(args, lane);
    for (int t = 0; t < tokens; ++t) Token<kPerLane>(args, t, lane).Enter(account.Of(t));
  }

  for (int t = first; t < tokens; t += kWarps) {
    Token<kPerLane> token(args, t, lane);
    token.FindReplaceable(resident, top);
    if (!parallel) continue;
    OpenAccount account(args, lane);
    token.SubstituteResident(resident, top, token.Book(account.Of(t)));
  }
  __syncthreads();
  if (!parallel && warp == 0) {
    OpenAccount account(args, lane);
    for (int t = 0; t < tokens; ++t) {
      Token<kPerLane> token(args, t, lane);
      token.SubstituteResident(resident, top, token.Book(account.Of(t)));
    }
  }

  if (args.second_pass != 0) SubstituteFetched(args, tokens, warp, lane, marks, scratch);
  if (!parallel || args.second_pass != 0) __syncthreads();

  __syncwarp();
  bool changed = false;
  for (int t = first; t < tokens; t += kWarps) {
    if (args.scratch[t].changed == 0) continue;
    changed = true;
    Token<kPerLane>(args, t, lane).Weigh();
  }
  return __syncthreads_or(changed ? 1 : 0) != 0;
}

/// Adds the call's substitutions to the tally. Called by a warp.
__device__ __forceinline__ void TallyCall(const ExpertCacheArgs& args, int lane) {
  int slots = 0;
  double mass = 0, lost = 0;
  for (int i = lane; i < args.tokens * args.routing.top_k; i += 32) {
    const double own = args.own_weights[i];
    if (args.own_ids[i] != args.ids[i]) {
      ++slots;
      mass += own;
    }
    lost += own - static_cast<double>(args.weights[i]);
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    slots += __shfl_xor_sync(kFull, slots, d);
    mass += __shfl_xor_sync(kFull, mass, d);
    lost += __shfl_xor_sync(kFull, lost, d);
  }
  if (lane != 0) return;
  ServedTally& tally = *args.served.tally;
  AddTo(&tally.substituted, slots);
  atomicAdd(&tally.mass_substituted, mass);
  atomicAdd(&tally.mass_lost, lost);
}

/// The largest shares that a request of the call has lost so far; found by a warp.
struct LostShares {
  double slots = 0, mass = 0;
};
__device__ __forceinline__ LostShares WorstOfCall(const ExpertCacheArgs& args, int lane) {
  LostShares worst;
  for (int t = lane; t < args.tokens; t += 32) {
    const RequestAccount& account = AccountOf(args, t);
    worst.slots = fmax(
        worst.slots, static_cast<double>(account.substituted) / static_cast<double>(account.slots));
    if (account.mass > 0) worst.mass = fmax(worst.mass, account.mass_substituted / account.mass);
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    worst.slots = fmax(worst.slots, __shfl_xor_sync(kFull, worst.slots, d));
    worst.mass = fmax(worst.mass, __shfl_xor_sync(kFull, worst.mass, d));
  }
  return worst;
}

}  // namespace moert::cuda::expert_cache

#endif  // MOERT_KERNELS_CUDA_ROUTE_EXPERT_CACHE_CALL_CUH_
