// The expert-cache rule between the routing of few tokens and the decision about their misses, by
// the same CTA, a thread an expert.
#ifndef MOERT_KERNELS_CUDA_CACHE_RULE_CALL_CUH_
#define MOERT_KERNELS_CUDA_CACHE_RULE_CALL_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/cache/call_accounts.cuh"
#include "kernels/cuda/cache/known_call.cuh"
#include "kernels/cuda/cache/serve_call.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/route/add_to_tally.cuh"
#include "kernels/cuda/route/expert_cache_call.cuh"
#include "kernels/cuda/route/route_tokens.cuh"

namespace moert::cuda {

using expert_cache::Marks;

/// Shared memory of the rule, whose first kWarps warps work, in the place of the routing's.
template <int kPerLane, int kWarps>
struct RuleScratch {
  __device__ RuleScratch() {}
  expert_cache::CallScratch<kPerLane, kWarps> call;
  ExpertCacheToken tokens[kFewTokens];
  int32_t own_ids[kMaxPairs];
  float own_weights[kMaxPairs];
};

/// Marks who is there, by the rows that the call begins with. By all threads.
__device__ __forceinline__ void MarkResident(const ServeMissesArgs& args, const Known& known,
                                             Marks& marks) {
  const bool there = threadIdx.x < args.experts && known.layer.lent != 0 && known.row.slot >= 0;
  expert_cache::MarkThere(there, threadIdx.x / 32, marks);
}

/// Drops what was to be prefetched for the call and has not begun.
__device__ __forceinline__ void ClosePrefetch(const ServeMissesArgs& args, Known* known) {
  if (!known->listed) return;
  PrefetchedRecord& record = args.prefetch->records[threadIdx.x];
  known->prefetched.state = expert_cache::CloseListed(record);
  known->closed = true;
}
/// A record that has begun counts as there, its victim not.
__device__ __forceinline__ void MarkPrefetched(const Known& known, Marks& marks) {
  if (!known.listed || known.prefetched.state != kPrefetchBegun) return;
  expert_cache::MarkBegun(known.prefetched.expert, known.prefetched.victim, marks);
}

/// The largest shares that requests of the call have lost. By a warp.
__device__ __forceinline__ void ReportWorst(const ExpertCacheArgs& args, int lane) {
  const expert_cache::LostShares worst = expert_cache::WorstOfCall(args, lane);
  if (lane != 0) return;
  ServedTally& tally = *args.served.tally;
  RaiseTo(args.worst_shares, worst.slots);
  RaiseTo(args.worst_shares + 1, worst.mass);
  RaiseTo(&tally.worst_slot_share, worst.slots);
  RaiseTo(&tally.worst_mass_share, worst.mass);
}

/// Turns the call's choice into the rule's. By all threads.
template <int kPerLane, int kWarps, int kPairs>
__device__ __forceinline__ void ApplyRule(const ExpertCacheArgs& rule, const Known& known,
                                          RoutedPairs<kPairs>& routed, CallAccounts& accounts,
                                          Marks& marks, RuleScratch<kPerLane, kWarps>& scratch) {
  const int e = threadIdx.x, warp = e / 32, lane = e % 32;
  MarkPrefetched(known, marks);
  if (known.unsettled) __syncthreads();
  ExpertCacheArgs args = rule;
  args.ids = routed.ids;
  args.weights = routed.weights;
  args.accounts = accounts.ruled;
  args.account_of = accounts.of;
  args.scratch = scratch.tokens;
  args.own_ids = scratch.own_ids;
  args.own_weights = scratch.own_weights;
  args.host_own_ids = nullptr;
  if (!expert_cache::Substitute(args, accounts.apart != 0, marks, scratch.call)) return;
  for (int i = e; i < args.tokens * args.routing.top_k; i += static_cast<int>(blockDim.x)) {
    rule.ids[i] = routed.ids[i];
    rule.weights[i] = routed.weights[i];
  }
  const int last_warp = static_cast<int>(blockDim.x) / 32 - 1;
  if (warp == last_warp - 1) expert_cache::TallyCall(args, lane);
  if (warp == last_warp) ReportWorst(args, lane);  // keep the running maximum
  __syncthreads();
}

/// By all threads of a CTA with a warp or more to spare: routing by the rule, and the decision.
/// kOneTileEach, given: as DecideCall; kept: as RouteTokens; scratch: a union of the routing's, the rule's
/// and the decision's.
template <bool kOneTileEach, int kPairs, typename Scratch>
__device__ __forceinline__ void RuleAndServe(const RouteFewArgs& route, const ExpertCacheArgs& rule,
                                             const ServeMissesArgs& args,
                                             const ServeMissesArgs& given, float* kept,
                                             RoutedPairs<kPairs>& routed, CallAccounts& accounts,
                                             Marks& marks, Scratch& scratch) {
  Known known = ReadKnown</*kPlain=*/false>(args);
  const AllAccounts all{args.low.call.accounts, rule.accounts};
  ReadAccounts(all, rule.account_of, route.tokens, accounts);
  MarkResident(args, known, marks);
  GridDependencySync();
  if (route.tokens == 0) return;
  ClosePrefetch(args, &known);
  const ExpertPairs mine = RouteTokens(route, routed, scratch.route, kept, [&] {
    ApplyRule(rule, known, routed, accounts, marks, scratch.rule);
  });
  ShareKnown(args, known, scratch.serve);
  const CallPairs<uint16_t> pairs{routed.sorted, routed.firsts};
  DecideCall</*kPlain=*/false, kOneTileEach>(args, given, known, mine.count, pairs,
                                             LowOfCall(args, routed, accounts), scratch.serve);
  if (threadIdx.x / 32 == 1) StoreAccounts(all, route.tokens, accounts);
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_RULE_CALL_CUH_
