// The decision of a call whose misses the device serves, by one CTA of kTileThreads: a thread an
// expert, which also looks after the slot of its number (serve_misses.h).
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_SERVE_CALL_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_SERVE_CALL_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/primitives/answer_low.cuh"
#include "kernels/cuda/primitives/arc_call.cuh"
#include "kernels/cuda/primitives/expert_tiles.cuh"
#include "kernels/cuda/primitives/few_tiles.cuh"
#include "kernels/cuda/primitives/give_to_cpu.cuh"
#include "kernels/cuda/primitives/known_call.cuh"
#include "kernels/cuda/primitives/rank_slots.cuh"
#include "kernels/cuda/primitives/served_slots.cuh"
#include "kernels/cuda/primitives/settle_prefetches.cuh"
#include "kernels/cuda/serve_misses.h"

namespace moert::cuda {

/// Shared memory of the tiles.
union BothTilesScratch {
  __device__ BothTilesScratch() {}
  TileScratch<kFewExperts> any;
  FewTilesScratch few;
};
/// The tiles of both waves: thread e's handles and the tokens of its expert, whose pairs begin at
/// `first_pair`.
__device__ __forceinline__ void MakeBothTiles(const ServeMissesArgs& args,
                                              const ExpertHandle& ready, const ExpertHandle& late,
                                              int count, int first_pair, bool any_late,
                                              BothTilesScratch& scratch) {
  const MakeTilesArgs& tiles = args.tiles;
  const int e = threadIdx.x;
  const int32_t* slots = tiles.shared_slots;
  if (e < args.experts) slots = tiles.groups.sorted + first_pair;
  if (OneTileEach(tiles)) {
    const bool waits = late.record != nullptr;
    ExpertTokens expert{ready, e == args.experts ? tiles.tokens : count, slots};
    if (waits) expert.handle = late;
    MakeFewTiles(tiles, args.late_table, expert, waits ? 1 : 0, scratch.few);
    return;
  }
  const ExpertTokens first{ready, e == args.experts ? tiles.tokens : count, slots};
  MakeTiles(
      tiles, tiles.table, [&](int) { return first; }, scratch.any);
  if (!any_late) {
    MakeNoTiles(args.late_table, tiles.shares);
    return;
  }
  __syncthreads();  // the scratch has been read
  const ExpertTokens then{late, count, slots};
  MakeTiles(
      tiles, args.late_table, [&](int) { return then; }, scratch.any);
}

/// Gives both waves to the products: their tiles of both waves, or the handles of the thread's
/// expert.
__device__ __forceinline__ void GiveWaves(const ServeMissesArgs& args, const ExpertHandle& ready,
                                          const ExpertHandle& late, int count, int first_pair,
                                          bool any_late, BothTilesScratch& scratch) {
  const int e = threadIdx.x;
  if (args.makes_tiles != 0) {
    MakeBothTiles(args, ready, late, count, first_pair, any_late, scratch);
  } else if (e <= args.experts) {
    args.ready[e] = ready;
    args.late[e] = late;
  }
}

/// The tokens that want the thread's expert, as bits.
template <typename Slot>
__device__ __forceinline__ uint32_t WantedBy(const ServeMissesArgs& args,
                                             const CallPairs<Slot>& pairs, int e, int count) {
  if (args.tokens == 1) return count > 0 ? 1 : 0;
  uint32_t bits = 0;
  const Slot* const slots = pairs.sorted + pairs.firsts[e];
  for (int i = 0; i < count; ++i) bits |= 1U << (slots[i] / args.top_k);
  return bits;
}

/// How layers give each other slots in a call.
struct Lending {
  uint64_t lender;  // the least key
  double gain;
  int hole;  // the first place of a slot that has none
};

/// By the thread of the lender's number: its slot becomes the layer's, at `hole`.
__device__ __forceinline__ void TakeSlot(const SlotLenders& lenders, const ServedLayer& lender,
                                         int experts, int hole) {
  const int64_t d = threadIdx.x;
  lenders.rows[d * experts + lender.spare_expert] = ServedExpert{};
  lenders.slots[d * experts + lender.spare_slot] = nullptr;
  lenders.layer[d].slots = lender.slots - 1;
  lenders.layer[d].spare_at = nullptr;  // until its next call
  lenders.slots[int64_t{lenders.mine} * experts + hole] = lender.spare_at;
}

/// By the thread of the expert that is worth least of those that are there.
__device__ __forceinline__ void OfferSpare(ServedLayer* layer, double worth, int slot,
                                           uint8_t* at) {
  layer->spare_at = at;
  layer->spare_worth = static_cast<float>(worth);
  layer->spare_expert = static_cast<int32_t>(threadIdx.x);
  layer->spare_slot = slot;
}

/// By one thread: what the layer and the copies go by from now on, and the counts. `elsewhere`:
/// answered low, or given to the CPU.
__device__ __forceinline__ void EndCall(const ServeMissesArgs& args, const ServedLayer& layer,
                                        const ServedCounts& call, int wanted, int elsewhere,
                                        int64_t bytes, const Prefetched& prefetched) {
  if (layer.lent != 0) {
    constexpr double kWeight = 1.0 / 64;
    const int inserted = call.copies() + prefetched.inserted;
    args.layer->tick = layer.tick + 1;
    args.layer->calls = layer.calls + 1;
    args.layer->slots = layer.slots + call.borrowed;
    args.layer->inserted = layer.inserted + kWeight * (inserted - layer.inserted);
    if (elsewhere > 0) args.layer->elsewhere = 1;
  }
  *args.num_copies = call.copies();
  // Nobody waits for the sums.
  const auto add = [&](uint64_t ServedTally::*field, int64_t more) {
    auto* const at = reinterpret_cast<unsigned long long*>(&(args.tally->*field));
    if (more != 0) atomicAdd(at, static_cast<unsigned long long>(more));
  };
  add(&ServedTally::lookups, wanted);
  add(&ServedTally::hits, wanted - call.misses - elsewhere - prefetched.arrived - prefetched.late -
                              prefetched.late_fills);
  add(&ServedTally::loads, call.misses + prefetched.fills);
  add(&ServedTally::bytes, bytes + static_cast<int64_t>(prefetched.fill_bytes));
  add(&ServedTally::evictions, call.evictions() + call.borrowed + prefetched.evicted);
  add(&ServedTally::arrived, prefetched.arrived);
  add(&ServedTally::late, prefetched.late);
  add(&ServedTally::wasted, prefetched.wasted);
  add(&ServedTally::brought_bytes, static_cast<int64_t>(prefetched.bytes));
  add(&ServedTally::fills, prefetched.fills);
  add(&ServedTally::late_fills, prefetched.late_fills);
}

/// Where an expert that is wanted is multiplied from after the call; its copy, where it has one.
/// `at`: its slot's place, or null; `record`: of the version that answers.
__device__ __forceinline__ ExpertHandle PlaceExpert(const ServeMissesArgs& args,
                                                    const ServedRecord& record, int version,
                                                    uint8_t* at, bool miss, int miss_rank) {
  ExpertHandle handle{record.host, record.format, version};
  if (at != nullptr) handle.record = at;
  if (miss && at != nullptr) args.copies[miss_rank] = {record.host, at, record.bytes};
  return handle;
}

/// Adds the bytes of the threads' records that are missing, or answer low. By all threads. Records
/// are whole words of 16 bytes.
__device__ __forceinline__ void AddMissed(const ServedRecord& record, bool miss, uint32_t* words) {
  const auto mine = miss ? static_cast<uint32_t>(record.bytes / 16) : 0;
  const uint32_t of_warp = __reduce_add_sync(~0U, mine);
  if (threadIdx.x % 32 == 0 && of_warp > 0) atomicAdd(words, of_warp);
}

/// What is decided by, then the tiles: each in shared memory while it is needed.
union ServeScratch {
  __device__ ServeScratch() {}
  struct {
    alignas(ServedExpert) uint8_t rows[kFewExperts * sizeof(ServedExpert)];
    RankScratch ranks;
    uint8_t* slots[kFewExperts];
    int32_t counts[kFewExperts];
    uint8_t held[kFewExperts], coming[kFewExperts];
    Lending lending;
    bool cpu_idle;
  } table;
  BothTilesScratch tiles;
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

/// Stores what is known where all threads see it; who holds a slot. By all threads.
__device__ __forceinline__ void ShareKnown(const ServeMissesArgs& args, const Known& known,
                                           ServeScratch& scratch) {
  auto& table = scratch.table;
  auto* const rows = reinterpret_cast<ServedExpert*>(table.rows);
  const int e = threadIdx.x;
  const bool is_expert = e < args.experts, lent = known.layer.lent != 0;
  if (is_expert) {
    rows[e] = lent ? known.row : ServedExpert{};
    table.slots[e] = known.slot;
    table.held[e] = known.slot == nullptr ? 1 : 0;
    table.coming[e] = 0;
  }
  if (e == 0) {
    table.lending = {kNobodyLends, 0, args.experts};
    table.cpu_idle = known.cpu_idle;
  }
  __syncthreads();
  if (is_expert && lent && known.row.slot >= 0) table.held[known.row.slot] = 1;
  if (args.lenders.layers == 0) return;
  if (is_expert && known.slot == nullptr) atomicMin(&table.lending.hole, e);
  if (known.lends == kNobodyLends) return;
  atomicMin(reinterpret_cast<unsigned long long*>(&table.lending.lender),
            static_cast<unsigned long long>(known.lends));
}

/// Whether the call takes a slot of another layer: then it is the last of its places, and counted.
/// By all threads.
__device__ __forceinline__ void Borrow(const ServeMissesArgs& args, const Known& known,
                                       const Standing& mine, double worth, int miss_rank,
                                       int victim_rank, ServeScratch& scratch, ServedCounts* call) {
  auto& table = scratch.table;
  if (SaysGain(*call, mine.miss, mine.idle, miss_rank, victim_rank)) table.lending.gain = worth;
  __syncthreads();
  const uint64_t lender = table.lending.lender;
  const int hole = table.lending.hole;
  if (hole == args.experts || !Borrows(lender, table.lending.gain)) return;
  ++call->borrowed;
  if (known.lends == lender) {
    table.slots[hole] = known.other.spare_at;
    table.ranks.places[call->copies() - 1] = hole;
    TakeSlot(args.lenders, known.other, args.experts, hole);
  }
  __syncthreads();
}

/// Behind ShareKnown and the kernels in front: the whole decision. `count`: tokens of the thread's
/// expert; low_call: as that of args, in any memory. By all threads. The rows are read once and
/// written at the end; between barriers everybody reads what the call began with.
template <bool kPlain, typename Slot>
__device__ __forceinline__ void DecideCall(const ServeMissesArgs& args, const Known& known,
                                           int count, const CallPairs<Slot>& pairs,
                                           const LowCall& low_call, ServeScratch& scratch) {
  auto& table = scratch.table;
  auto* const rows = reinterpret_cast<ServedExpert*>(table.rows);
  __shared__ uint32_t words;  // of missing records
  __shared__ Prefetched prefetched;
  __shared__ uint64_t spare;
  __shared__ SettledRecords settled;
  alignas(ArcState) __shared__ uint8_t arc_state[kPlain ? 16 : sizeof(ArcState)];
  const int e = threadIdx.x;
  const bool is_expert = e < args.experts;
  const bool lent = known.layer.lent != 0;
  const bool by_arc = !kPlain && args.arc != nullptr && lent;
  const ServedArc lists{reinterpret_cast<ArcState*>(arc_state),
                        reinterpret_cast<ArcNode*>(table.ranks.keys), table.counts};
  if (by_arc) {
    WriteArcWord(lists.state, known.arc_word);
    if (is_expert) {
      lists.nodes[e] = known.node;
      lists.nodes[e].missed = 0;
    }
  }
  if (e == 0) {
    words = 0;
    spare = kNobodyLends;
    prefetched = Prefetched{};
  }
  double worth = 0;
  if (is_expert) {
    table.counts[e] = count;
    if (lent) worth = AddCall(args, known, count);
    if (args.wanted != nullptr) args.wanted[e] = WantedBy(args, pairs, e, count);
  }
  if (e == 0 && args.wanted != nullptr) args.predicted->routed = args.tokens;
  __syncthreads();
  if (known.unsettled) {
    SettleAll(*args.prefetch, known, table.counts, rows, table.held, table.coming, &settled,
              &prefetched);
  }
  int listed = 0;
  if (by_arc) {
    listed = __syncthreads_count(known.listed ? 1 : 0);
    for (int i = 0; e == 0 && i < listed; ++i) {
      SettlePrefetch(settled.expert[i], settled.victim[i], PrefetchEnd{settled.end[i]}, lists);
    }
  }
  const ServedExpert row = is_expert ? rows[e] : ServedExpert{};
  const bool coming = is_expert && table.coming[e] != 0;
  Standing mine;
  mine.wanted = is_expert && count > 0;
  mine.miss = mine.wanted && row.slot < 0;
  mine.idle = row.slot >= 0 && count == 0;
  mine.free = is_expert && lent && table.held[e] == 0;
  const bool shares = !kPlain && args.cpu.call != nullptr && lent && table.cpu_idle;
  LowAnswered low;
  if (!kPlain && low_call.accounts != nullptr) {
    const bool asks = mine.miss && !(shares && SparedByCpu(args.cpu, count));
    low = AnswerLow(args, low_call, pairs, table.counts, asks, count, table.ranks);
    if (low.mine) mine.miss = false;
  }
  GivenToCpu cpu;
  if (shares) {
    const int free = __syncthreads_count(mine.free ? 1 : 0);
    cpu = GiveToCpu(args, mine.miss, count, free, prefetched.late, table.ranks);
    if (cpu.mine) mine.miss = false;
  }
  if (cpu.all > 0) {
    PostGiven(args, cpu, known.record, count);
  } else if (!kPlain && e == 0 && args.cpu.call != nullptr) {
    args.cpu.call->experts = 0;
  }
  const ServedRecord record = low.mine ? args.low.records[e] : known.record;
  int wanted = 0;
  StandingBefore before{};
  ServedCounts call = CountStandings(mine, &wanted, &before);
  int miss_rank = 0, victim_rank = args.experts;
  if (by_arc) {
    RankByArc(lists, settled, listed, call, wanted, mine, row, before, args.experts, table.coming,
              table.ranks, &miss_rank, &victim_rank);
    StoreArc(lists, args.experts, args.arc, args.arc_nodes);
  } else if (call.misses > 0) {
    RankSlots(call, mine, row, count, worth, before, args.experts, table.ranks, &miss_rank,
              &victim_rank);
  }
  const bool lends = args.lenders.layers > 0 && lent;
  if (lends && call.misses > call.free) {
    Borrow(args, known, mine, worth, miss_rank, victim_rank, scratch, &call);
  }

  ExpertHandle ready, late;
  int slot = -1;
  uint8_t* at = nullptr;  // its place
  if (is_expert) {
    // Answered low, or by the CPU, it stays absent.
    const ServedExpert after = low.mine || cpu.mine
                                   ? row
                                   : AfterCall(row, count, known.layer.tick + 1, call,
                                               table.ranks.places, miss_rank, victim_rank);
    if (lent) args.rows[e] = after;
    slot = after.slot;
    if (slot >= 0) at = table.slots[slot];
    if (count > 0 && !cpu.mine) {
      const bool waits = coming || (mine.miss && at != nullptr);
      const ExpertHandle handle =
          PlaceExpert(args, record, low.mine ? 1 : 0, at, mine.miss, miss_rank);
      (waits ? late : ready) = handle;
    }
  }
  AddMissed(record, mine.miss || low.mine, &words);
  if (lends) FindLeast(at != nullptr, worth, &spare);
  if (args.ids != nullptr) {
    GiveSlots(args, slot, table.counts);
  } else {
    if (e == args.experts) ready = known.shared;
    const int first_pair = is_expert && args.makes_tiles != 0 ? pairs.firsts[e] : 0;
    __syncthreads();  // the tiles take the scratch
    const int waited = call.copies() + prefetched.late + prefetched.late_fills;
    GiveWaves(args, ready, late, count, first_pair, waited > 0, scratch.tiles);
  }
  __syncthreads();
  if (lends && at != nullptr && spare == LendingKey(static_cast<float>(worth), e)) {
    OfferSpare(args.layer, worth, slot, at);
  }
  if (e == 0) {
    EndCall(args, known.layer, call, wanted, low.all + cpu.all, int64_t{16} * words, prefetched);
  }
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_SERVE_CALL_CUH_
