#include <cuda_runtime.h>

#include "kernels/cuda/few_products.h"
#include "kernels/cuda/primitives/choose_experts.cuh"
#include "kernels/cuda/primitives/few_work.cuh"
#include "kernels/cuda/primitives/group_share.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/prefetch_share.cuh"
#include "kernels/cuda/primitives/selection_tally.cuh"

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

/// What needs not wait for the kernels in front.
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
                                           ChoiceScratch* scratch, uint8_t* x) {
#ifdef MOERT_X_IN_SHARED
  for (int t = 0; args.x_stride != 0 && t < args.tokens; ++t) {
    for (int i = threadIdx.x * 16; i < args.x_stride; i += kGemmThreads * 16) {
      CopyAsync16(SharedAddress(x + t * args.x_stride + i), args.gemm.x[0] + t * args.gemm.x_stride + i, true);
    }
  }
#endif
  for (int e = threadIdx.x; e <= args.routing.num_experts; e += kGemmThreads) {
    CopyAsync16(SharedAddress(scratch->handles + e), args.handles + e, true);
    if (counts) CopyAsync16(SharedAddress(scratch->tally + e), args.tally + e, true);
  }
  CopyAsyncCommit();
}

/// By a warp: the experts of a token. stores: this CTA tells of them.
template <int kPerLane>
__device__ __forceinline__ void Choose(const FewProductsArgs& args, int token, int lane,
                                       bool real, bool stores, ChoiceScratch* scratch) {
  const int experts = args.routing.num_experts, top_k = args.routing.top_k;
  float(&keys)[2][kFewExperts] = scratch->keys[token];
  const Chosen chosen =
      ChooseExperts<kPerLane>(args.routing, token, real ? args.logits + token * experts : reinterpret_cast<const float*>(args.handles),
                              stores ? args.scores + token * experts : nullptr, keys[0], keys[1],
                              (args.trial.bits & 2048) != 0);
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
                                         bool real, bool stores, ChoiceScratch* scratch) {
  const int experts = args.routing.num_experts;
  if (experts <= 64) {
    Choose<2>(args, token, lane, real, stores, scratch);
  } else if (experts <= 128) {
    Choose<4>(args, token, lane, real, stores, scratch);
  } else if (experts <= 256) {
    Choose<8>(args, token, lane, real, stores, scratch);
  } else {
    Choose<kFewExperts / 32>(args, token, lane, real, stores, scratch);
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

/// Chooses experts, finds the tiles, and takes the CTA's first shares. real: else a rehearsal,
/// before the logits are there, that stores nothing.
__device__ __forceinline__ void Prepare(const FewProductsArgs& args, bool real, bool scribe,
                                        int warp, int lane, ChoiceScratch* scratch, FewWork* work,
                                        TakenShares* taken) {
  const bool stores = real && blockIdx.x == 0, counts = stores && args.tally != nullptr;
  Clear(args, scratch);
  __syncthreads();
  int ticket = static_cast<int>(blockIdx.x);
  if (real) {
    GridDependencySync();
    TriggerDependentLaunch();
    trial::Stamp(args.trial, 4, 1);
    if (lane == 0 && warp < 2 && !scribe) ticket = atomicAdd(args.gemm.table.ticket + warp, 1);
    CopyTables(args, counts, scratch, reinterpret_cast<uint8_t*>(scratch) + kGemmWarps * kRingBytes);
  }
  if (warp < args.tokens) ChooseOf(args, warp, lane, real, stores, scratch);
  CopyAsyncWait<0>();
  __syncthreads();
  if (real) trial::Stamp(args.trial, 4, 2);
  MakeFewTiles(args, *scratch, work);
  if (counts) CountCall(args, *scratch);
  __syncthreads();
  if (warp < 2) {
    work->SumCosts(warp, lane);
    TakeFirst(args.gemm, warp, __shfl_sync(kFull, ticket, 0), *work, lane, taken);
  }
  __syncthreads();
}

#ifdef MOERT_FEW_REGISTERS
__global__ void __maxnreg__(MOERT_FEW_REGISTERS)
#else
__global__ void __launch_bounds__(kGemmThreads, kGemmCtas)
#endif
    FewProductsKernel(const __grid_constant__ FewProductsArgs args) {
  extern __shared__ __align__(128) float shared[];
  __shared__ FewWork work;
  __shared__ TakenShares taken;
  auto* const scratch = reinterpret_cast<ChoiceScratch*>(shared + kReduceBytes / 4);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  trial::Stamp(args.trial, 4, 0);
  work.Know(args);
  const auto* const dummy = reinterpret_cast<const uint8_t*>(args.logits);  // nothing is read there
  for (int e = threadIdx.x; e <= args.routing.num_experts; e += kGemmThreads) {
    scratch->handles[e] = {dummy, 0};
  }
  if (lane == 0 && warp < 2) InitMbarrier(&taken.mbarriers[warp]);
  const bool scribe = (args.trial.bits & 1024) != 0 && blockIdx.x == 0;
#pragma unroll 1
  for (int pass = (args.trial.bits & 65536) != 0 ? 0 : 1; pass < 2; ++pass) {
    Prepare(args, pass == 1, scribe, warp, lane, scratch, &work, &taken);
  }
  if (scribe) return;
  trial::Stamp(args.trial, 4, 3);
  if (warp == kGemmWarps - 1 && taken.ticket[1] < args.gemm.shares && !(args.trial.bits & 512)) {
    PrefetchShare(work, taken.begin[1], taken.end[1], lane);
  }
  RunShares<1>(args.gemm, work, taken, shared, args.trial, args.x_stride);
  __syncthreads();
  trial::Stamp(args.trial, 4, 5);
}

}  // namespace

#ifdef MOERT_FEW_LAUNCH
int MOERT_FEW_LAUNCH(const FewProductsArgs& args, CUstream_st* stream) {
#else
int LaunchFewDeep(const FewProductsArgs& args, CUstream_st* stream);
int LaunchFewSlim(const FewProductsArgs& args, CUstream_st* stream);
int LaunchFewBoth(const FewProductsArgs& args, CUstream_st* stream);
int LaunchFewProducts(const FewProductsArgs& args, CUstream_st* stream) {
  switch (trial::Now().bits & (16384 | 32768)) {
    case 16384:
      return LaunchFewDeep(args, stream);
    case 32768:
      return LaunchFewSlim(args, stream);
    case 16384 | 32768:
      return LaunchFewBoth(args, stream);
    default:
      break;
  }
#endif
  if (!ProductsChoose(args.tokens, args.routing.top_k, args.routing.num_experts)) {
    return cudaErrorInvalidValue;
  }
  const cudaError_t error = cudaFuncSetAttribute(
      FewProductsKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kGemmSharedBytes + 24576);
  if (error != cudaSuccess) return error;
  FewProductsArgs all = args;
  all.trial = trial::Now();
  if ((all.trial.bits & 1024) != 0) --all.gemm.shares;
  int shared = kGemmSharedBytes;
#ifdef MOERT_X_IN_SHARED
  const int width = (args.gemm.hidden + 127) / 128 * 256;
  if (args.gemm.x[0] != nullptr && args.tokens * width <= 24576) {
    all.x_stride = width;
    shared += args.tokens * width;
  }
#endif
  all.gemm.first = 0;
  all.gemm.last = 1;
  all.gemm.pairs = args.tokens * args.routing.top_k;
  all.gemm.top_k = args.routing.top_k;
  all.gemm.top_k_inverse = TopKInverse(args.routing.top_k);
  return LaunchEarly(FewProductsKernel, args.gemm.shares, kGemmThreads, shared, stream,
                     all);
}

}  // namespace moert::cuda
