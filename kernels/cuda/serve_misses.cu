#include <cuda_runtime.h>

#include "kernels/cuda/primitives/expert_tiles.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/served_slots.cuh"
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

/// Fills `places` with the slots that misses take, the free ones first, then those of the victims
/// in their order; says in which turn the thread's expert comes or goes. By all threads.
__device__ __forceinline__ void RankSlots(const ServedCounts& call, const int32_t* counts,
                                          const ServedExpert* rows, const double* worth,
                                          const uint8_t* held, int experts, int slot, bool free,
                                          bool idle, bool miss, int32_t* places, int* miss_rank,
                                          int* victim_rank) {
  const int e = threadIdx.x;
  if (free) places[FreeBefore(held, e)] = e;
  if (idle && call.misses > call.free) {
    *victim_rank = VictimRank(counts, rows, worth, experts, e);
    places[call.free + *victim_rank] = slot;
  }
  if (miss) *miss_rank = MissRank(counts, rows, experts, e);
  __syncthreads();
}

/// What the layer's prefetches have come to, of all of them.
struct Prefetched {
  int arrived;  // wanted
  int late;     // likewise
  int wasted;
  int inserted;
  int evicted;
  unsigned long long bytes;
};

/// Drops, stops or goes on with what was prefetched for the call, and changes `rows` accordingly;
/// coming: [experts] zeros, then those that the products wait for. By all threads.
__device__ __forceinline__ void SettleAll(const ServeMissesArgs& args, int64_t tick,
                                          const int32_t* counts, ServedExpert* rows,
                                          uint8_t* coming, Prefetched* sums) {
  LayerPrefetch& list = *args.prefetch;
  const int i = threadIdx.x;
  if (list.settled == 0 && i < list.count) {
    PrefetchedRecord& record = list.records[i];
    const bool wanted = counts[record.expert] > 0;
    const int done = LoadAcquire(&record.done);
    int state = kPrefetchBegun;
    if (done < kCopyCtas) {
      state = atomicCAS(&record.state, kPrefetchListed, kPrefetchDropped);
      if (state == kPrefetchBegun && !wanted) atomicExch(&record.state, kPrefetchStopped);
    }
    const PrefetchEnd end = EndOfPrefetch(state, done, wanted);
    SettlePrefetch(record, end, tick, rows);
    if (end == PrefetchEnd::kUnderWay) coming[record.expert] = 1;
    const bool arrived = end == PrefetchEnd::kArrived, late = end == PrefetchEnd::kUnderWay;
    if (arrived && wanted) atomicAdd(&sums->arrived, 1);
    if (late) atomicAdd(&sums->late, 1);
    if (arrived || late) atomicAdd(&sums->inserted, 1);
    if (end == PrefetchEnd::kBroken || (arrived && !wanted)) atomicAdd(&sums->wasted, 1);
    if (end != PrefetchEnd::kNothing) {
      if (record.victim >= 0) atomicAdd(&sums->evicted, 1);
      atomicAdd(&sums->bytes, static_cast<unsigned long long>(record.copy.bytes));
    }
  }
  __syncthreads();
  if (i == 0) list.settled = 1;
}

/// Adds the call to the means of the thread's expert. Returns its worth.
__device__ __forceinline__ double AddUse(const ServeMissesArgs& args, int e, int count,
                                         int64_t calls) {
  ServedUse use = args.use[e];
  const double used = static_cast<double>(count) / args.tokens;
  double scored = used;
  if (args.scores != nullptr) {
    double sum = 0;
    for (int64_t t = 0; t < args.tokens; ++t) sum += args.scores[t * args.experts + e];
    scored = args.top_k * sum / args.tokens;
  }
  use.Add(calls, used, scored);
  args.use[e] = use;
  return use.Worth();
}

/// The same by the sums of scores, of `calls` calls before this one.
__device__ __forceinline__ double AddScores(const ServeMissesArgs& args, int e, int count,
                                            int64_t calls) {
  const float* scores = args.scores == nullptr ? nullptr : args.scores + e;
  float* const oldest =
      args.history + ServedScores::Row(calls, args.window) * args.experts + e;
  double sum = args.sums[e];
  ServedScores::Add(ServedScores::Of(scores, args.experts, args.tokens, count), oldest, &sum);
  args.sums[e] = sum;
  return sum;
}

/// The tokens that want the thread's expert, as bits.
__device__ __forceinline__ uint32_t WantedBy(const ServeMissesArgs& args, int e, int count) {
  if (args.tokens == 1) return count > 0 ? 1 : 0;
  uint32_t bits = 0;
  const int32_t* slots = args.groups.sorted + args.groups.firsts[e];
  for (int i = 0; i < count; ++i) bits |= 1U << (slots[i] / args.top_k);
  return bits;
}

/// By one thread: what the layer and the copies go by from now on, and the counts.
__device__ void EndCall(const ServeMissesArgs& args, const ServedLayer& layer,
                        const ServedCounts& call, int wanted, int64_t bytes,
                        const Prefetched& prefetched) {
  if (layer.lent != 0) {
    constexpr double kWeight = 1.0 / 64;
    ServedLayer after = layer;
    ++after.tick;
    ++after.calls;
    after.inserted += kWeight * (call.copies() + prefetched.inserted - layer.inserted);
    *args.layer = after;
  }
  *args.num_copies = call.copies();
  // Nobody waits for the sums.
  const auto add = [&](uint64_t ServedTally::*field, int64_t more) {
    auto* const at = reinterpret_cast<unsigned long long*>(&(args.tally->*field));
    if (more != 0) atomicAdd(at, static_cast<unsigned long long>(more));
  };
  add(&ServedTally::lookups, wanted);
  add(&ServedTally::hits, wanted - call.misses - prefetched.arrived - prefetched.late);
  add(&ServedTally::loads, call.misses);
  add(&ServedTally::bytes, bytes);
  add(&ServedTally::evictions, call.evictions() + prefetched.evicted);
  add(&ServedTally::arrived, prefetched.arrived);
  add(&ServedTally::late, prefetched.late);
  add(&ServedTally::wasted, prefetched.wasted);
  add(&ServedTally::brought_bytes, static_cast<int64_t>(prefetched.bytes));
}

/// Where an expert that is wanted is multiplied from after the call; its copy, where it has one.
/// `at`: its slot's place, or null.
__device__ __forceinline__ ExpertHandle PlaceExpert(const ServeMissesArgs& args,
                                                    const ServedRecord& record, uint8_t* at,
                                                    bool miss, int miss_rank,
                                                    unsigned long long* bytes) {
  ExpertHandle handle{record.host, record.format, 0};
  if (at != nullptr) handle.record = at;
  if (miss && at != nullptr) args.copies[miss_rank] = {record.host, at, record.bytes};
  if (miss) atomicAdd(bytes, static_cast<unsigned long long>(record.bytes));
  return handle;
}

/// What is decided by, then the tiles: each in shared memory while it is needed.
union ServeScratch {
  __device__ ServeScratch() {}
  struct {
    alignas(ServedExpert) uint8_t rows[kFewExperts * sizeof(ServedExpert)];
    double worth[kFewExperts];
    uint8_t* slots[kFewExperts];
    int32_t counts[kFewExperts], places[kFewExperts];
    uint8_t held[kFewExperts], coming[kFewExperts];
  } table;
  TileScratch<kFewExperts> tiles;
};
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
  __shared__ ServeScratch scratch;
  auto* const rows = reinterpret_cast<ServedExpert*>(scratch.table.rows);
  int32_t* const counts = scratch.table.counts;
  __shared__ unsigned long long bytes;
  __shared__ Prefetched prefetched;
  const int e = threadIdx.x;
  const bool is_expert = e < args.experts;
  // Constants: they need not wait for the kernels in front.
  ServedRecord record;
  if (is_expert) record = args.records[e];
  if (is_expert && args.makes_tiles != 0) PrefetchFormat(args.tiles.formats + record.format);
  GridDependencySync();
  const ServedLayer layer = *args.layer;
  const int slots = layer.lent != 0 ? layer.slots : 0;
  const bool by_scores = args.window > 0 && layer.lent != 0;
  const bool by_worth = (args.use != nullptr && layer.lent != 0) || by_scores;
  int count = 0;
  if (e == 0) {
    bytes = 0;
    prefetched = Prefetched{};
  }
  if (args.ids != nullptr) CountIds(args, counts);
  if (is_expert) {
    rows[e] = layer.lent != 0 ? args.rows[e] : ServedExpert{};
    count = args.ids != nullptr ? counts[e] : args.counts[e];
    counts[e] = count;
    scratch.table.slots[e] = args.slots[e];
    scratch.table.held[e] = 0;
    scratch.table.coming[e] = 0;
    if (by_worth) {
      scratch.table.worth[e] = by_scores ? AddScores(args, e, count, layer.calls)
                                         : AddUse(args, e, count, layer.calls + 1);
    }
    if (args.wanted != nullptr) args.wanted[e] = WantedBy(args, e, count);
  }
  if (e == 0 && args.wanted != nullptr) args.predicted->routed = args.tokens;
  __syncthreads();
  if (args.prefetch != nullptr && layer.lent != 0) {
    SettleAll(args, layer.tick, counts, rows, scratch.table.coming, &prefetched);
  }
  const ServedExpert row = is_expert ? rows[e] : ServedExpert{};
  const bool coming = is_expert && scratch.table.coming[e] != 0;
  const bool there = row.slot >= 0;
  const bool miss = is_expert && count > 0 && !there;
  const bool idle = there && count == 0;
  if (there) scratch.table.held[row.slot] = 1;
  ServedCounts call;
  call.misses = __syncthreads_count(miss);
  const bool free = is_expert && e < slots && scratch.table.held[e] == 0;
  call.free = __syncthreads_count(free);
  call.idle = __syncthreads_count(idle);
  const int wanted = __syncthreads_count(is_expert && count > 0);

  int miss_rank = 0, victim_rank = args.experts;
  if (call.misses > 0) {
    RankSlots(call, counts, rows, by_worth ? scratch.table.worth : nullptr, scratch.table.held,
              args.experts, row.slot, free, idle, miss, scratch.table.places, &miss_rank,
              &victim_rank);
  }

  const int64_t tick = layer.tick + 1;
  ExpertHandle ready, late;
  int slot = -1;
  if (is_expert) {
    const ServedExpert after =
        AfterCall(row, count, tick, call, scratch.table.places, miss_rank, victim_rank);
    if (layer.lent != 0) args.rows[e] = after;
    slot = after.slot;
    if (count > 0) {
      uint8_t* const at = after.slot >= 0 ? scratch.table.slots[after.slot] : nullptr;
      const bool waits = coming || (miss && at != nullptr);
      const ExpertHandle handle = PlaceExpert(args, record, at, miss, miss_rank, &bytes);
      (waits ? late : ready) = handle;
    }
  }
  if (args.ids != nullptr) {
    GiveSlots(args, slot, counts);
  } else {
    if (e == args.experts) ready = *args.shared;
    __syncthreads();  // the tiles take the scratch
    GiveWaves(args, ready, late, count, call.copies() + prefetched.late > 0, scratch.tiles);
  }
  __syncthreads();
  if (e == 0) EndCall(args, layer, call, wanted, static_cast<int64_t>(bytes), prefetched);
}

}  // namespace

int LaunchServeMisses(const ServeMissesArgs& args, CUstream_st* stream) {
  return LaunchEarly(ServeMissesKernel, 1, kTileThreads, 0, stream, args);
}

}  // namespace moert::cuda
