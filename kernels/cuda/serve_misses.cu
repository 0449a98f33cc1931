#include <cuda_runtime.h>

#include "kernels/cuda/primitives/expert_tiles.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/serve_misses.h"

namespace moert::cuda {
namespace {

/// A table of no tiles.
__device__ void MakeNoTiles(const TileTable& table, int shares) {
  const int i = threadIdx.x;
  for (int at = i; at < 2 * (shares + 1); at += kTileThreads) {
    table.starts[at & 1][at >> 1] = Position{0, 0};
  }
  if (i < 2) table.ticket[i] = 0;
}

/// The tiles of both waves: thread e's handles and the tokens of its expert.
__device__ void MakeBothTiles(const ServeMissesArgs& args, const ExpertHandle& ready,
                              const ExpertHandle& late, int count, bool any_late,
                              TileScratch<kFewExperts>& scratch) {
  MakeTilesArgs tiles = args.tiles;
  const int e = threadIdx.x;
  const int32_t* slots = tiles.shared_slots;
  if (e < args.experts) slots = tiles.groups.sorted + tiles.groups.firsts[e];
  const ExpertTokens first{ready, e == args.experts ? tiles.tokens : count, slots};
  MakeTiles(
      tiles, [&](int) { return first; }, scratch);
  tiles.table = args.late_table;
  if (!any_late) {
    MakeNoTiles(tiles.table, tiles.shares);
    return;
  }
  __syncthreads();  // the scratch has been read
  const ExpertTokens then{late, count, slots};
  MakeTiles(
      tiles, [&](int) { return then; }, scratch);
}

/// Gives both waves to the products: their tiles of both waves, or the handles of the thread's
/// expert.
__device__ __forceinline__ void GiveWaves(const ServeMissesArgs& args, const ExpertHandle& ready,
                                          const ExpertHandle& late, int count, bool any_late,
                                          TileScratch<kFewExperts>& scratch) {
  const int e = threadIdx.x;
  if (args.makes_tiles != 0) {
    MakeBothTiles(args, ready, late, count, any_late, scratch);
  } else if (e <= args.experts) {
    args.ready[e] = ready;
    args.late[e] = late;
  }
}

/// How many slots before `slot` nobody is in.
__device__ __forceinline__ int FreeBefore(const uint8_t* held, int slot) {
  int count = 0;
  for (int s = 0; s < slot; ++s) count += held[s] == 0 ? 1 : 0;
  return count;
}

/// Fills `places` with the slots that misses take, the free ones first, then those of the victims
/// in their order; says in which turn the thread's expert comes or goes. By all threads.
__device__ __forceinline__ void RankSlots(const ServedCounts& call, const int32_t* counts,
                                          const ServedExpert* rows, const uint8_t* held,
                                          int experts, int slot, bool free, bool idle, bool miss,
                                          int32_t* places, int* miss_rank, int* victim_rank) {
  const int e = threadIdx.x;
  if (free) places[FreeBefore(held, e)] = e;
  if (idle && call.misses > call.free) {
    *victim_rank = VictimRank(counts, rows, experts, e);
    places[call.free + *victim_rank] = slot;
  }
  if (miss) *miss_rank = MissRank(counts, rows, experts, e);
  __syncthreads();
}

/// By one thread: what the layer and the copies go by from now on, and the counts.
__device__ void EndCall(const ServeMissesArgs& args, const ServedLayer& layer,
                        const ServedCounts& call, int wanted, int64_t bytes) {
  if (layer.lent != 0) args.layer->tick = layer.tick + 1;
  *args.num_copies = call.copies();
  ServedTally tally = *args.tally;
  tally.lookups += wanted;
  tally.hits += wanted - call.misses;
  tally.loads += call.misses;
  tally.bytes += bytes;
  tally.evictions += call.evictions();
  *args.tally = tally;
}

/// Where expert e, which is wanted, is multiplied from after the call; its copy, where it has one.
__device__ __forceinline__ ExpertHandle PlaceExpert(const ServeMissesArgs& args, int e, int slot,
                                                    bool miss, int miss_rank,
                                                    unsigned long long* bytes) {
  const ServedRecord record = args.records[e];
  ExpertHandle handle{record.host, record.format, 0};
  if (slot >= 0) handle.record = args.slots[slot];
  if (miss && slot >= 0) args.copies[miss_rank] = {record.host, args.slots[slot], record.bytes};
  if (miss) atomicAdd(bytes, static_cast<unsigned long long>(record.bytes));
  return handle;
}

/// The tokens of every expert by the ids of the call. By all threads.
__device__ __forceinline__ void CountIds(const ServeMissesArgs& args, int32_t* counts) {
  const int e = threadIdx.x;
  if (e < args.experts) counts[e] = 0;
  __syncthreads();
  for (int i = e; i < args.pairs; i += kTileThreads) {
    const int32_t id = args.ids[i];
    if (id >= 0 && id < args.experts) atomicAdd(&counts[id], 1);
  }
  __syncthreads();
}

/// Says where the experts of the call lie: `slot` is the thread's expert's, of the layer. By all
/// threads; `numbers` is theirs to use.
__device__ __forceinline__ void GiveSlots(const ServeMissesArgs& args, int slot, int32_t* numbers) {
  const int e = threadIdx.x;
  if (e < args.experts) {
    const int32_t number =
        slot < 0 ? -1 : static_cast<int32_t>((args.slots[slot] - args.base) / args.stride);
    numbers[e] = number;
    args.table[e] = number;
  }
  __syncthreads();
  if (args.found == nullptr) return;
  for (int i = e; i < args.pairs; i += kTileThreads) {
    const int32_t id = args.ids[i];
    args.found[i] = id >= 0 && id < args.experts ? numbers[id] : -1;
  }
}

/// One CTA: a thread an expert, which also looks after the slot of its number. The rows are read
/// once and written at the end; between barriers everybody reads what the call began with.
__global__ void __launch_bounds__(kTileThreads)
    ServeMissesKernel(const __grid_constant__ ServeMissesArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ alignas(ServedExpert) uint8_t shared_rows[kFewExperts * sizeof(ServedExpert)];
  auto* const rows = reinterpret_cast<ServedExpert*>(shared_rows);
  __shared__ int32_t counts[kFewExperts], places[kFewExperts];
  __shared__ TileScratch<kFewExperts> scratch;
  __shared__ uint8_t held[kFewExperts];
  __shared__ unsigned long long bytes;
  const int e = threadIdx.x;
  const bool is_expert = e < args.experts;
  const ServedLayer layer = *args.layer;
  const int slots = layer.lent != 0 ? layer.slots : 0;
  ServedExpert row;
  int count = 0;
  if (e == 0) bytes = 0;
  if (args.ids != nullptr) CountIds(args, counts);
  if (is_expert) {
    row = args.rows[e];
    if (layer.lent == 0) row = ServedExpert{};
    count = args.ids != nullptr ? counts[e] : args.counts[e];
    rows[e] = row;
    counts[e] = count;
    held[e] = 0;
  }
  __syncthreads();
  const bool there = is_expert && row.slot >= 0;
  const bool miss = is_expert && count > 0 && !there;
  const bool idle = there && count == 0;
  if (there) held[row.slot] = 1;
  ServedCounts call;
  call.misses = __syncthreads_count(miss);
  const bool free = is_expert && e < slots && held[e] == 0;
  call.free = __syncthreads_count(free);
  call.idle = __syncthreads_count(idle);
  const int wanted = __syncthreads_count(is_expert && count > 0);

  int miss_rank = 0, victim_rank = args.experts;
  if (call.misses > 0) {
    RankSlots(call, counts, rows, held, args.experts, row.slot, free, idle, miss, places,
              &miss_rank, &victim_rank);
  }

  const int64_t tick = layer.tick + 1;
  ExpertHandle ready, late;
  int slot = -1;
  if (is_expert) {
    const ServedExpert after = AfterCall(row, count, tick, call, places, miss_rank, victim_rank);
    if (layer.lent != 0) args.rows[e] = after;
    slot = after.slot;
    if (count > 0) {
      const bool copied = miss && after.slot >= 0;
      const ExpertHandle handle = PlaceExpert(args, e, after.slot, miss, miss_rank, &bytes);
      (copied ? late : ready) = handle;
    }
  }
  if (args.ids != nullptr) {
    GiveSlots(args, slot, counts);
  } else {
    if (e == args.experts) ready = *args.shared;
    GiveWaves(args, ready, late, count, call.copies() > 0, scratch);
  }
  __syncthreads();
  if (e == 0) EndCall(args, layer, call, wanted, static_cast<int64_t>(bytes));
}

}  // namespace

int LaunchServeMisses(const ServeMissesArgs& args, CUstream_st* stream) {
  return LaunchEarly(ServeMissesKernel, 1, kTileThreads, 0, stream, args);
}

}  // namespace moert::cuda
