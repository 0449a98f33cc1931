// A call of few tokens, by one CTA, a thread an expert: its routing, the expert-cache rule where it
// has one, and the decision about its misses.
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

/// Shared memory of the rule, which the first kWarps warps carry out. It replaces the routing's.
template <int kPerLane, int kWarps>
struct RuleScratch {
  __device__ RuleScratch() {}
  expert_cache::CallScratch<kPerLane, kWarps> call;
  ExpertCacheToken tokens[kFewTokens];
  int32_t own_ids[kMaxPairs];
  float own_weights[kMaxPairs];
};

/// Reports the largest shares that requests of the call have lost. Called by a warp.
__device__ __forceinline__ void ReportWorst(const ExpertCacheArgs& args, int lane) {
  const expert_cache::LostShares worst = expert_cache::WorstOfCall(args, lane);
  if (lane != 0) return;
  ServedTally& tally = *args.served.tally;
  RaiseTo(args.worst_shares, worst.slots);
  RaiseTo(args.worst_shares + 1, worst.mass);
  RaiseTo(&tally.worst_slot_share, worst.slots);
  RaiseTo(&tally.worst_mass_share, worst.mass);
}

/// No rule: the choice stays as it is.
struct NoCallRule {
  static constexpr bool kApplies = false;
};
/// The rule of a call, by all threads of a CTA with a warp or more to spare.
template <int kPerLane, int kWarps>
struct CallRule {
  static constexpr bool kApplies = true;
  const ExpertCacheArgs& rule;
  Marks& marks;
  RuleScratch<kPerLane, kWarps>& scratch;

  /// Marks the experts that are resident as the call begins.
  __device__ __forceinline__ void MarkResident(const ServeMissesArgs& args,
                                               const Known& known) const {
    const bool there = threadIdx.x < args.experts && known.layer.lent != 0 && known.row.slot >= 0;
    expert_cache::MarkThere(there, threadIdx.x / 32, marks);
  }
  /// Drops the prefetches for the call that have not begun.
  __device__ __forceinline__ void ClosePrefetch(const ServeMissesArgs& args, Known* known) const {
    if (!known->listed) return;
    PrefetchedRecord& record = args.prefetch->records[threadIdx.x];
    known->prefetched.state = expert_cache::CloseListed(record);
    known->closed = true;
  }
  /// Turns the call's choice into the rule's. A record whose prefetch has begun counts as resident,
  /// its victim as absent.
  template <int kPairs>
  __device__ __forceinline__ void Apply(const Known& known, RoutedPairs<kPairs>& routed,
                                        CallAccounts& accounts) const {
    const int e = threadIdx.x, warp = e / 32, lane = e % 32;
    if (known.listed && known.prefetched.state == kPrefetchBegun) {
      expert_cache::MarkBegun(known.prefetched.expert, known.prefetched.victim, marks);
    }
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
};

/// Routing, the rule and the decision. kPlain, kOneTileEach, given: as DecideCall; kept: as
/// RouteTokens; scratch: a union of the routing's and the decision's. Called by all threads.
template <bool kPlain, bool kOneTileEach, int kPairs, typename Rule, typename Scratch>
__device__ __forceinline__ void RouteAndServe(const RouteFewArgs& route, const Rule& rule,
                                              const ServeMissesArgs& args,
                                              const ServeMissesArgs& given, float* kept,
                                              RoutedPairs<kPairs>& routed, CallAccounts& accounts,
                                              Scratch& scratch) {
  Known known = ReadKnown<kPlain>(args);
  AllAccounts all{args.low.call.accounts, nullptr};
  const int32_t* account_of = args.low.call.account_of;
  if constexpr (Rule::kApplies) {
    all.ruled = rule.rule.accounts;
    account_of = rule.rule.account_of;
    rule.MarkResident(args, known);
  }
  const bool accounted = Rule::kApplies || (!kPlain && all.low != nullptr);
  if (accounted) ReadAccounts(all, account_of, route.tokens, accounts);
  GridDependencySync();
  if (route.tokens == 0) return;
  // The compiler may take for granted that every thread looks at all pairs.
  if (kOneTileEach) {
    __builtin_assume(LooksAtAll(route.tokens * route.routing.top_k, route.routing.num_experts));
  }
  if constexpr (Rule::kApplies) rule.ClosePrefetch(args, &known);
  const ExpertPairs mine = RouteTokens(route, routed, scratch.route, kept, [&] {
    if constexpr (Rule::kApplies) rule.Apply(known, routed, accounts);
  });
  ShareKnown(args, known, scratch.serve.table);
  const CallPairs<uint16_t> pairs{routed.sorted, routed.firsts};
  DecideCall<kPlain, kOneTileEach>(args, given, known, mine.count, pairs,
                                   LowOfCall(args, routed, accounts), scratch.serve);
  if (accounted && threadIdx.x / 32 == 1) StoreAccounts(all, route.tokens, accounts);
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_RULE_CALL_CUH_
