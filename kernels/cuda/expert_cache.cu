// One CTA a call, since the rule is defined over the whole batch: warps take tokens, and what runs
// from token to token (the caps of requests with several rows, the second pass) one warp does in
// order.
#include <cuda_runtime.h>

#include "kernels/cuda/expert_cache.h"
#include "kernels/cuda/expert_cache_token.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace moert::cuda {
namespace {

using expert_cache::AccountOf;
using expert_cache::OpenAccount;
using expert_cache::Token;

constexpr int kWarps = 8;
constexpr int kWords = kFewExperts / 32;

/// Whether expert e is there in full: by the residency table, or, where the device serves misses, in
/// a slot of a layer that is lent.
__device__ __forceinline__ bool IsThere(const ExpertCacheArgs& args, int e) {
  const ServedResidents& served = args.served;
  if (served.layer != nullptr) return served.layer->lent != 0 && served.rows[e].slot >= 0;
  return args.handles[e].record != nullptr && args.handles[e].version == 0;
}

/// Marks the experts that are there in full, and nobody else yet.
__device__ __forceinline__ void MarkResident(const ExpertCacheArgs& args, int experts, int warp,
                                             int lane, uint32_t* resident, uint32_t* top,
                                             uint32_t* anchored) {
  for (int word = warp; word < kWords; word += kWarps) {
    const int e = 32 * word + lane;
    const bool here = e < experts && IsThere(args, e);
    const uint32_t bits = __ballot_sync(kFull, here);
    if (lane == 0) {
      resident[word] = bits;
      top[word] = anchored[word] = 0;
    }
  }
}

/// Drops what was to be prefetched for the layer and has not begun; marks what has. By threads from
/// 0 on, one a record.
__device__ __forceinline__ void ClosePrefetch(const ServedResidents& served, uint32_t* resident) {
  if (served.prefetch == nullptr || served.layer->lent == 0) return;
  LayerPrefetch& list = *served.prefetch;
  const int i = threadIdx.x;
  if (list.settled != 0 || i >= list.count) return;
  PrefetchedRecord& record = list.records[i];
  if (atomicCAS(&record.state, kPrefetchListed, kPrefetchDropped) != kPrefetchBegun) return;
  const int gone = record.victim, comes = record.expert;
  if (gone >= 0) atomicAnd(&resident[gone / 32], ~(1u << (gone % 32)));
  atomicOr(&resident[comes / 32], 1u << (comes % 32));
}

/// By a warp: adds what the call substituted.
__device__ __forceinline__ void TallyCall(const ExpertCacheArgs& args, int tokens, int lane,
                                          double slot_share, double mass_share) {
  int slots = 0;
  double mass = 0, lost = 0;
  for (int i = lane; i < tokens * args.routing.top_k; i += 32) {
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
  tally.substituted += static_cast<uint64_t>(slots);
  tally.mass_substituted += mass;
  tally.mass_lost += lost;
  tally.worst_slot_share = slot_share;
  tally.worst_mass_share = mass_share;
}

/// By a warp: the largest shares that a request has lost so far, and what the host asked for.
__device__ __forceinline__ void ReportCall(const ExpertCacheArgs& args, int tokens, int lane,
                                           const uint32_t* resident, const uint32_t* top) {
  double slot_share = 0, mass_share = 0;
  for (int t = lane; t < tokens; t += 32) {
    const RequestAccount& account = AccountOf(args, t);
    slot_share = fmax(
        slot_share, static_cast<double>(account.substituted) / static_cast<double>(account.slots));
    if (account.mass > 0) mass_share = fmax(mass_share, account.mass_substituted / account.mass);
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    slot_share = fmax(slot_share, __shfl_xor_sync(kFull, slot_share, d));
    mass_share = fmax(mass_share, __shfl_xor_sync(kFull, mass_share, d));
  }
  slot_share = fmax(slot_share, args.worst_shares[0]);
  mass_share = fmax(mass_share, args.worst_shares[1]);
  __syncwarp();
  if (lane == 0) {
    args.worst_shares[0] = slot_share;
    args.worst_shares[1] = mass_share;
  }
  if (args.served.tally != nullptr) TallyCall(args, tokens, lane, slot_share, mass_share);
  if (args.report == nullptr) return;
  if (lane < kWords) {
    args.report->top_score[lane] = top[lane];
    args.report->resident[lane] = resident[lane];
  }
  if (lane == 0) {
    args.report->worst_slot_share = slot_share;
    args.report->worst_mass_share = mass_share;
  }
}

/// By a warp: the second pass over the tokens that fetch something.
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

template <int kPerLane>
__global__ void __launch_bounds__(32 * kWarps)
    ExpertCacheKernel(const __grid_constant__ ExpertCacheArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ uint32_t resident[kWords], top[kWords], anchored[kWords];
  __shared__ int users[32 * kPerLane];
  __shared__ float group_keys[kWarps][32 * kPerLane], group_ranks[kWarps][32 * kPerLane];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int experts = args.routing.num_experts;
  const int tokens = args.tokens;
  const bool parallel =
      args.one_row_each != 0 || (args.rows_apart != nullptr && *args.rows_apart != 0);
  MarkResident(args, experts, warp, lane, resident, top, anchored);
  for (int e = threadIdx.x; e < 32 * kPerLane; e += 32 * kWarps) users[e] = 0;
  __syncthreads();
  if (args.served.layer != nullptr) {
    ClosePrefetch(args.served, resident);
    __syncthreads();
  }

  for (int t = warp; t < tokens; t += kWarps) {
    Token<kPerLane> token(args, t, lane);
    token.View(group_keys[warp], group_ranks[warp], top);
    __syncwarp();
    if (!parallel) continue;
    OpenAccount account(args, lane);
    token.Enter(account.Of(t));
  }
  __syncthreads();
  if (!parallel && warp == 0) {
    OpenAccount account(args, lane);
    for (int t = 0; t < tokens; ++t) Token<kPerLane>(args, t, lane).Enter(account.Of(t));
  }

  for (int t = warp; t < tokens; t += kWarps) {
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

  if (args.second_pass != 0) {
    __syncthreads();
    for (int i = threadIdx.x; i < tokens * args.routing.top_k; i += 32 * kWarps) {
      atomicAdd(&users[args.ids[i]], 1);
    }
    __syncthreads();
    if (warp == 0) GroupFetched<kPerLane>(args, tokens, lane, resident, top, anchored, users);
  }
  __syncthreads();

  for (int t = warp; t < tokens; t += kWarps) Token<kPerLane>(args, t, lane).Weigh();
  __syncthreads();
  if (warp != 0) return;
  ReportCall(args, tokens, lane, resident, top);
}

__global__ void SetAccountsKernel(int32_t* rows, int32_t* apart, RequestAccount* accounts,
                                  LowAccount* low_accounts,
                                  const __grid_constant__ AccountRows set) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int i = threadIdx.x;
  if (i == 0) *apart = set.one_row_each;
  if (i >= set.count) return;
  rows[set.begin + i] = set.account[i];
  if ((set.fresh[i / 32] >> (i % 32) & 1) == 0) return;
  accounts[set.account[i]] = RequestAccount{};
  if (low_accounts != nullptr) low_accounts[set.account[i]] = LowAccount{};
}

}  // namespace

int LaunchExpertCache(const ExpertCacheArgs& args, CUstream_st* stream) {
  const int experts = args.routing.num_experts;
  const auto kernel = experts <= 64    ? ExpertCacheKernel<2>
                      : experts <= 128 ? ExpertCacheKernel<4>
                      : experts <= 256 ? ExpertCacheKernel<8>
                                       : ExpertCacheKernel<kFewExperts / 32>;
  return LaunchEarly(kernel, 1, 32 * kWarps, 0, stream, args);
}

int LaunchSetAccounts(int32_t* rows, int32_t* apart, RequestAccount* accounts,
                      LowAccount* low_accounts, const AccountRows& set, CUstream_st* stream) {
  return LaunchEarly(SetAccountsKernel, 1, AccountRows::kMax, 0, stream, rows, apart, accounts,
                     low_accounts, set);
}

}  // namespace moert::cuda
