#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/few/few_products.h"
#include "kernels/cuda/few/group_share.cuh"
#include "kernels/cuda/few/share_start.cuh"
#include "kernels/cuda/few/tile_matrix.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/route/add_to_tally.cuh"
#include "kernels/cuda/route/choose_experts.cuh"
#include "kernels/cuda/route/expert_tiles.cuh"

namespace moert::cuda {
namespace {

/// Weights of a share that are prefetched into L2 before it begins. Those of all CTAs together
/// leave most of L2 to other data.
constexpr int kPrefetchBytes = 48 << 10;

__device__ __forceinline__ void PrefetchLine(const uint8_t* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/// Prefetches the lines that contain `bytes` bytes from `at` on. Called by a warp.
__device__ __forceinline__ void PrefetchBytes(const uint8_t* at, int bytes, int lane) {
  constexpr int kLine = 128;
  const int before = static_cast<int>(reinterpret_cast<uintptr_t>(at) % kLine);
  for (int i = lane * kLine; i < before + bytes; i += 32 * kLine) PrefetchLine(at - before + i);
}

/// Prefetches what a share of `down` reads, up to kPrefetchBytes of weights. Called by a warp.
template <typename Work>
__device__ __forceinline__ void PrefetchShare(const Work& work, const Position& begin,
                                              const Position& end, int lane) {
  int left = kPrefetchBytes;
  for (TileWalk walk{begin, end, 0}; !walk.done() && left > 0; walk.at = {walk.at.tile + 1, 0}) {
    const ResolvedTile tile = work.TileAt(walk.at.tile, 1, lane);
    const TileMatrix& m = tile.m;
    const int last = walk.at.tile == end.tile ? end.item : m.items;
    const int first_block = walk.at.item * 2, blocks = min(last * 2, m.row_blocks) - first_block;
    if (blocks <= 0) continue;
    const int block_bytes = m.k64s * K64Bytes(m.packing);
    PrefetchBytes(m.weights + static_cast<int64_t>(first_block) * block_bytes,
                  min(blocks * block_bytes, left), lane);
    left -= blocks * block_bytes;
    if (m.group_k16s == 0) continue;
    const int scale_bytes = BlockScaleBytes(m.packing);
    const int groups = (m.k64s * 4 + m.group_k16s - 1) / m.group_k16s;
    for (int g = lane; g < groups; g += 32) {
      const uint8_t* const at =
          m.scales + (static_cast<int64_t>(g) * m.row_blocks + first_block) * scale_bytes;
      PrefetchLine(at);
      PrefetchLine(at + blocks * scale_bytes - 1);
      if (m.zero_distance != 0) PrefetchLine(at + m.zero_distance);
    }
  }
}

/// The tiles of few tokens, one per expert, and their division into shares. Every CTA computes them
/// for itself, in shared memory.
constexpr int kChoosingTiles = kChoosingPairs + 1;
/// Number of formats, the first ones, whose matrices are resolved before experts are known.
constexpr int kKnownFormats = 4;

struct FewTile {
  const uint8_t* record;  // null: nothing is multiplied
  int32_t format;
  int32_t count;
};

struct FewWork {
  FewTile tiles[kChoosingTiles];
  TileMatrix known[kKnownFormats][2];    // for a record at address 0
  int32_t known_cost[kKnownFormats][2];  // of a tile
  int32_t ends[2][kChoosingTiles];       // cost of the tiles up to and including this one
  uint16_t slots[kChoosingTiles][kChoosingTokens];
  const DeviceFormat* formats;
  int32_t num_tiles;
  int32_t shares;
  uint32_t one_share;

  /// The matrix of a format in a record.
  __device__ __forceinline__ TileMatrix Matrix(const uint8_t* record, int format,
                                               int product) const {
    if (format >= kKnownFormats) {
      const DeviceFormat& f = formats[format];
      return ResolveMatrix(record, product == 0 ? f.gate : f.down, product == 0 ? &f.up : nullptr);
    }
    TileMatrix m = known[format][product];
    m.weights = record + reinterpret_cast<uintptr_t>(m.weights);
    m.scales = record + reinterpret_cast<uintptr_t>(m.scales);
    return m;
  }
  __device__ __forceinline__ int Items(const FewTile& tile, int product) const {
    if (tile.record == nullptr) return 0;
    if (tile.format < kKnownFormats) return known[tile.format][product].items;
    return Matrix(tile.record, tile.format, product).items;
  }

  __device__ __forceinline__ ResolvedTile TileAt(int index, int product, int lane) const {
    const FewTile& tile = tiles[index];
    ResolvedTile t;
    t.index = index;
    t.m = Matrix(tile.record, tile.format, product);
    if (tile.record == nullptr) t.m.items = 0;
    t.count = tile.count;
    t.h_items = product == 0 ? t.m.items : Items(tile, 0);
    t.plain_h = true;
    t.slot = slots[index][min(lane, tile.count - 1)];
    return t;
  }

  __device__ __forceinline__ const float* Biases(int index, int product) const {
    const FewTile& tile = tiles[index];
    return BiasesOf(Matrix(tile.record, tile.format, product));
  }

  /// Where share `share` of a product's work begins.
  __device__ __forceinline__ Position StartOf(int product, int share) const {
    return ShareStart(ends[product], num_tiles, share, shares, one_share,
                      [&](int tile) { return Items(tiles[tile], product); });
  }

  static __device__ __forceinline__ int32_t CostOf(const TileMatrix& m) {
    return SmallTileCost(m, kChoosingTokens);
  }

  /// Resolves the matrices of the known formats, a thread each. Formats are constants, so this need
  /// not wait for the preceding kernels.
  __device__ __forceinline__ void Know(const FewProductsArgs& args) {
    const int i = threadIdx.x;
    if (i == kGemmThreads - 1) {
      formats = args.formats;
      shares = args.gemm.shares;
      one_share = OneShare(args.gemm.shares);
    }
    if (i >= 2 * min(args.num_formats, kKnownFormats)) return;
    const DeviceFormat& f = args.formats[i / 2];
    const TileMatrix m = i % 2 == 0 ? ResolveMatrix(nullptr, f.gate, &f.up)
                                    : ResolveMatrix(nullptr, f.down, nullptr);
    known[i / 2][i % 2] = m;
    known_cost[i / 2][i % 2] = CostOf(m);
  }

  /// Sums up the costs of a product's tiles. Called by a warp.
  __device__ __forceinline__ void SumCosts(int product, int lane) {
    int32_t before = 0;
    for (int first = 0; first < num_tiles; first += 32) {
      const int i = first + lane;
      int32_t cost = 0;
      if (i < num_tiles && tiles[i].record != nullptr) {
        const int format = tiles[i].format;
        cost = format < kKnownFormats ? known_cost[format][product]
                                      : CostOf(Matrix(tiles[i].record, format, product));
      }
      const int32_t sum = WarpSums(Several<int32_t, 1>{cost}).v[0];
      if (i < num_tiles) ends[product][i] = before + sum;
      before += __shfl_sync(~0u, sum, 31);
    }
    __syncwarp();
  }
};

/// Shared memory while experts are chosen. Weights are copied there later.
struct ChoiceScratch {
  ExpertHandle handles[kFewExperts + 1];
  SelectionTally tally[kFewExperts + 1];
  uint32_t tokens_of[kFewExperts + 1];    // a bit per token
  uint32_t wanted[kFewExperts / 32 + 1];  // a bit per expert
  int32_t ids[kChoosingPairs];
  float weights[kChoosingPairs];
  float keys[kGemmWarps][2][kFewExperts];
};
static_assert(sizeof(ChoiceScratch) <= kGemmWarps * kRingBytes);
static_assert(sizeof(ExpertHandle) == 16 && sizeof(SelectionTally) == 16);
static_assert(kChoosingTokens <= kGemmWarps);
static_assert(kChoosingPairs + kChoosingTokens <= kGemmThreads);

/// Sets the scratch to its first state, which need not wait for the preceding kernels.
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

/// Begins to copy the tables that are needed as soon as experts are known. counts: whether this CTA
/// adds to the tally.
__device__ __forceinline__ void CopyTables(const FewProductsArgs& args, bool counts,
                                           ChoiceScratch* scratch) {
  for (int e = threadIdx.x; e <= args.routing.num_experts; e += kGemmThreads) {
    CopyAsync16(SharedAddress(scratch->handles + e), args.handles + e, true);
    if (counts) CopyAsync16(SharedAddress(scratch->tally + e), args.tally + e, true);
  }
  CopyAsyncCommit();
}

/// Chooses the experts of a token. stores: whether this CTA stores the choice. Called by a warp.
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

/// The number of wanted experts below `e`.
__device__ __forceinline__ int WantedBelow(const ChoiceScratch& scratch, int e) {
  int count = __popc(scratch.wanted[e / 32] & ((1u << e % 32) - 1));
  for (int i = 0; i < e / 32; ++i) count += __popc(scratch.wanted[i]);
  return count;
}

/// Places every slot in its expert's tile, a thread per slot.
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

/// Stores the tally before the call plus the call. As in LaunchGroup, mass is summed in the order
/// of slots.
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

/// As Take, with begin and end computed in parallel. Called by a warp.
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
  // The first CTA stores the choice, and takes no share: all would wait for its products.
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
