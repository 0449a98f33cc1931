// The expert-cache rule in a launch of its own, and the accounts that it uses.
#include <cuda_runtime.h>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/route/expert_cache.h"
#include "kernels/cuda/route/expert_cache_call.cuh"

namespace moert::cuda {
namespace {

using expert_cache::Marks;

constexpr int kWarps = 8;

/// Whether expert e is resident in its full version: by the residency table, or, where the device
/// serves misses, by its slot, if the layer's slots are lent to the device.
__device__ __forceinline__ bool IsThere(const ExpertCacheArgs& args, int e) {
  const ServedResidents& served = args.served;
  if (served.layer != nullptr) return served.layer->lent != 0 && served.rows[e].slot >= 0;
  return args.handles[e].record != nullptr && args.handles[e].version == 0;
}

/// Marks the experts that are resident in full, and clears all other marks.
__device__ __forceinline__ void MarkResident(const ExpertCacheArgs& args, int experts, int warp,
                                             int lane, Marks& marks) {
  for (int word = warp; word < Marks::kWords; word += kWarps) {
    const int e = 32 * word + lane;
    expert_cache::MarkThere(e < experts && IsThere(args, e), word, marks);
  }
}

/// Drops the layer's prefetches that have not begun, and marks those that have. A thread per
/// record.
__device__ __forceinline__ void ClosePrefetch(const ServedResidents& served, Marks& marks) {
  if (served.prefetch == nullptr || served.layer->lent == 0) return;
  LayerPrefetch& list = *served.prefetch;
  const int i = threadIdx.x;
  if (list.settled != 0 || i >= list.count) return;
  PrefetchedRecord& record = list.records[i];
  if (expert_cache::CloseListed(record) != kPrefetchBegun) return;
  expert_cache::MarkBegun(record.expert, record.victim, marks);
}

/// Stores the largest shares that a request has lost so far, and the report that the host asked
/// for. Called by a warp.
__device__ __forceinline__ void ReportCall(const ExpertCacheArgs& args, bool changed, int lane,
                                           const Marks& marks) {
  const expert_cache::LostShares call = expert_cache::WorstOfCall(args, lane);
  const double slot_share = fmax(call.slots, args.worst_shares[0]);
  const double mass_share = fmax(call.mass, args.worst_shares[1]);
  __syncwarp();
  if (lane == 0) {
    args.worst_shares[0] = slot_share;
    args.worst_shares[1] = mass_share;
  }
  if (args.served.tally != nullptr) {
    if (changed) expert_cache::TallyCall(args, lane);
    if (lane == 0) {
      args.served.tally->worst_slot_share = slot_share;
      args.served.tally->worst_mass_share = mass_share;
    }
  }
  if (args.report == nullptr) return;
  if (lane < Marks::kWords) {
    args.report->top_score[lane] = marks.top[lane];
    args.report->resident[lane] = marks.resident[lane];
  }
  if (lane == 0) {
    args.report->worst_slot_share = slot_share;
    args.report->worst_mass_share = mass_share;
  }
}

template <int kPerLane>
__global__ void __launch_bounds__(32 * kWarps)
    ExpertCacheKernel(const __grid_constant__ ExpertCacheArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ Marks marks;
  __shared__ expert_cache::CallScratch<kPerLane, kWarps> scratch;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool parallel =
      args.one_row_each != 0 || (args.rows_apart != nullptr && *args.rows_apart != 0);
  MarkResident(args, args.routing.num_experts, warp, lane, marks);
  __syncthreads();
  if (args.served.layer != nullptr) {
    ClosePrefetch(args.served, marks);
    __syncthreads();
  }
  const bool changed = expert_cache::Substitute(args, parallel, marks, scratch);
  if (warp == 0) ReportCall(args, changed, lane, marks);
}

__global__ void SetAccountsKernel(int32_t* rows, int32_t* apart, RequestAccount* accounts,
                                  LowAccount* low_accounts,
                                  const __grid_constant__ AccountRows set) {
  // No kernel begins before this one has ended: decisions read accounts while the kernel in front
  // of them runs.
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
