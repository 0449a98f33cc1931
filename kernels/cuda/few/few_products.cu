#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/cache/prefetch_share.cuh"
#include "kernels/cuda/few/few_products.h"
#include "kernels/cuda/few/few_work.cuh"
#include "kernels/cuda/few/group_share.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/route/add_to_tally.cuh"
#include "kernels/cuda/route/choose_experts.cuh"

namespace moert::cuda {
namespace {

/// While experts are chosen; lies where weights are copied to later.
struct ChoiceScratch {
  ExpertHandle handles[kFewExperts + 1];
  SelectionTally tally[kFewExperts + 1];
  uint32_t tokens_of[kFewExperts + 1];    // a bit a token
  uint32_t wanted[kFewExperts / 32 + 1];  // a bit an expert
  int32_t ids[kChoosingPairs];
  float weights[kChoosingPairs];
  float keys[kGemmWarps][2][kFewExperts];
};
static_assert(sizeof(ChoiceScratch) <= kGemmWarps * kRingBytes);
static_assert(sizeof(ExpertHandle) == 16 && sizeof(SelectionTally) == 16);
static_assert(kChoosingTokens <= kGemmWarps);
static_assert(kChoosingPairs + kChoosingTokens <= kGemmThreads);

/// The part that need not wait for the kernels in front.
__device__ __forceinline__ void Clear(const FewProductsArgs& args, ChoiceScratch* scratch) {
  const int experts = args.routing.num_experts;
  const uint32_t all = (1u << args.tokens) - 1;
  for (int e = threadIdx.x; e <= experts; e += kGemmThreads) {
    scratch->tokens_of[e] = e == experts && args.shared != 0 ? all : 0;
  }
  for (int i = threadIdx.x; i <= experts / 32; i += kGemmThreads) {
    scratch->wanted[i] = args.shared != 0 && i == experts / 32 ? 1u << experts % 32 : 0;
  }
}

/// Begins to copy what is wanted as soon as experts are known. counts: of this CTA.
__device__ __forceinline__ void CopyTables(const FewProductsArgs& args, bool counts,
                                           ChoiceScratch* scratch) {
  for (int e = threadIdx.x; e <= args.routing.num_experts; e += kGemmThreads) {
    CopyAsync16(SharedAddress(scratch->handles + e), args.handles + e, true);
    if (counts) CopyAsync16(SharedAddress(scratch->tally + e), args.tally + e, true);
  }
  CopyAsyncCommit();
}

/// By a warp: the experts of a token. stores: this CTA tells of them.
template <int kPerLane>
__device__ __forceinline__ void Choose(const FewProductsArgs& args, int token, int lane,
                                       bool stores, ChoiceScratch* scratch) {
  const int experts = args.routing.num_experts, top_k = args.routing.top_k;
  float(&keys)[2][kFewExperts] = scratch->keys[token];
  const Chosen chosen =
      ChooseExperts<kPerLane>(args.routing, token, args.logits + token * experts,
                              {stores ? args.scores + token * experts : nullptr}, keys[0], keys[1]);
  if (lane >= top_k) return;
  const int at = token * top_k + lane;
  scratch->ids[at] = chosen.id;
  scratch->weights[at] = chosen.weight;
  atomicOr(scratch->tokens_of + chosen.id, 1u << token);
  atomicOr(scratch->wanted + chosen.id / 32, 1u << chosen.id % 32);
  if (!stores) return;
  args.ids[at] = chosen.id;
  args.weights[at] = chosen.weight;
}

__device__ __forceinline__ void ChooseOf(const FewProductsArgs& args, int token, int lane,
                                         bool stores, ChoiceScratch* scratch) {
  const int experts = args.routing.num_experts;
  if (experts <= 64) {
    Choose<2>(args, token, lane, stores, scratch);
  } else if (experts <= 128) {
    Choose<4>(args, token, lane, stores, scratch);
  } else if (experts <= 256) {
    Choose<8>(args, token, lane, stores, scratch);
  } else {
    Choose<kFewExperts / 32>(args, token, lane, stores, scratch);
  }
}

/// Experts below `e` that are wanted.
__device__ __forceinline__ int WantedBelow(const ChoiceScratch& scratch, int e) {
  int count = __popc(scratch.wanted[e / 32] & ((1u << e % 32) - 1));
  for (int i = 0; i < e / 32; ++i) count += __popc(scratch.wanted[i]);
  return count;
}

/// A thread a slot: places it in its expert's tile.
__device__ __forceinline__ void MakeFewTiles(const FewProductsArgs& args,
                                             const ChoiceScratch& scratch, FewWork* work) {
  const int slot = threadIdx.x, pairs = args.tokens * args.routing.top_k;
  if (slot == kGemmThreads - 1)
    work->num_tiles = WantedBelow(scratch, args.routing.num_experts) + args.shared;
  if (slot >= pairs + (args.shared != 0 ? args.tokens : 0)) return;
  const bool shared = slot >= pairs;
  const int e = shared ? args.routing.num_experts : scratch.ids[slot];
  const int token = shared ? slot - pairs : slot / args.routing.top_k;
  const uint32_t tokens = scratch.tokens_of[e];
  const int tile = WantedBelow(scratch, e);
  const int place = __popc(tokens & ((1u << token) - 1));
  work->slots[tile][place] = static_cast<uint16_t>(slot);
  if (place > 0) return;
  const ExpertHandle handle = scratch.handles[e];
  work->tiles[tile] = {handle.record, handle.format, __popc(tokens)};
}

/// Adds the call to what was counted before; as LaunchGroup, mass in the order of slots.
__device__ __forceinline__ void CountCall(const FewProductsArgs& args,
                                          const ChoiceScratch& scratch) {
  const int experts = args.routing.num_experts, top_k = args.routing.top_k;
  for (int e = threadIdx.x; e <= experts; e += kGemmThreads) {
    uint32_t tokens = scratch.tokens_of[e];
    float mass = 0;
    int slots = e == experts ? args.tokens * top_k : __popc(tokens);
    if (slots == 0) continue;
    for (; e < experts && tokens != 0; tokens &= tokens - 1) {
      int at = (__ffs(static_cast<int>(tokens)) - 1) * top_k;
      while (scratch.ids[at] != e) ++at;
      mass += scratch.weights[at];
    }
    args.tally[e] = WithCall(scratch.tally[e], slots, mass);
  }
}

/// By a warp: as Take, both ends at once.
__device__ __forceinline__ void TakeFirst(const GroupGemmArgs& gemm, int product, int ticket,
                                          const FewWork& work, int lane, TakenShares* taken) {
  if (lane == 0) taken->ticket[product] = ticket;
  if (lane > 1 || ticket >= gemm.shares) return;
  const Position at = work.StartOf(product, ticket + lane);
  (lane == 0 ? taken->begin : taken->end)[product] = at;
}

__global__ void __launch_bounds__(kGemmThreads, kGemmCtas)
    FewProductsKernel(const __grid_constant__ FewProductsArgs args) {
  extern __shared__ __align__(128) float shared[];
  __shared__ FewWork work;
  __shared__ TakenShares taken;
  auto* const scratch = reinterpret_cast<ChoiceScratch*>(shared + kReduceBytes / 4);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  Clear(args, scratch);
  work.Know(args);
  if (lane == 0 && warp < 2) InitMbarrier(&taken.mbarriers[warp]);
  __syncthreads();
  GridDependencySync();
  TriggerDependentLaunch();
  // The first CTA tells what was chosen, and takes no share: all would wait for its products.
  const bool stores = blockIdx.x == 0, counts = stores && args.tally != nullptr;
  const bool multiplies = !stores || gridDim.x == 1;
  int ticket = 0;
  if (lane == 0 && warp < 2 && multiplies) ticket = atomicAdd(args.gemm.table.ticket + warp, 1);
  CopyTables(args, counts, scratch);
  if (warp < args.tokens) ChooseOf(args, warp, lane, stores, scratch);
  CopyAsyncWait<0>();
  __syncthreads();
  MakeFewTiles(args, *scratch, &work);
  if (counts) CountCall(args, *scratch);
  if (!multiplies) return;
  __syncthreads();
  if (warp < 2) {
    work.SumCosts(warp, lane);
    TakeFirst(args.gemm, warp, __shfl_sync(kFull, ticket, 0), work, lane, &taken);
  }
  __syncthreads();
  if (warp == kGemmWarps - 1 && taken.ticket[1] < args.gemm.shares) {
    PrefetchShare(work, taken.begin[1], taken.end[1], lane);
  }
  RunShares<1>(args.gemm, work, taken, shared);
}

}  // namespace

int LaunchFewProducts(const FewProductsArgs& args, CUstream_st* stream) {
  if (!ProductsChoose(args.tokens, args.routing.top_k, args.routing.num_experts)) {
    return cudaErrorInvalidValue;
  }
  const cudaError_t error = cudaFuncSetAttribute(
      FewProductsKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kGemmSharedBytes);
  if (error != cudaSuccess) return error;
  FewProductsArgs all = args;
  all.gemm.shares = std::max(1, args.gemm.shares - 1);
  all.gemm.first = 0;
  all.gemm.last = 1;
  all.gemm.pairs = args.tokens * args.routing.top_k;
  all.gemm.top_k = args.routing.top_k;
  all.gemm.top_k_inverse = TopKInverse(args.routing.top_k);
  return LaunchEarly(FewProductsKernel, args.gemm.shares, kGemmThreads, kGemmSharedBytes, stream,
                     all);
}

}  // namespace moert::cuda
