// The decision of a call whose misses the device serves (serve_misses.h), by one CTA of
// kTileThreads. A thread has an expert and the slot with the same index.
#ifndef MOERT_KERNELS_CUDA_CACHE_SERVE_CALL_CUH_
#define MOERT_KERNELS_CUDA_CACHE_SERVE_CALL_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/cache/answer_low.cuh"
#include "kernels/cuda/cache/give_to_cpu.cuh"
#include "kernels/cuda/cache/known_call.cuh"
#include "kernels/cuda/cache/lend_slots.cuh"
#include "kernels/cuda/cache/rank_slots.cuh"
#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/cache/served_slots.cuh"
#include "kernels/cuda/cache/settle_prefetches.cuh"
#include "kernels/cuda/few/give_waves.cuh"
#include "kernels/cuda/route/add_to_tally.cuh"

namespace moert::cuda {

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

/// Stores the layer's state after the call, the number of copies, and the tally. `elsewhere`:
/// misses answered low or given to the CPU. Called by one thread.
__device__ __forceinline__ void EndCall(const ServeMissesArgs& args, const ServedLayer& layer,
                                        const ServedCounts& call, int wanted, int elsewhere,
                                        int64_t bytes, const Prefetched& prefetched) {
  if (layer.lent != 0) {
    constexpr double kWeight = running_mean::kInserted.weight;
    const int inserted = call.copies() + prefetched.inserted;
    args.layer->tick = layer.tick + 1;
    args.layer->calls = layer.calls + 1;
    args.layer->slots = layer.slots + call.borrowed;
    args.layer->inserted = layer.inserted + kWeight * (inserted - layer.inserted);
    if (elsewhere > 0) args.layer->elsewhere = 1;
  }
  *args.num_copies = call.copies();
  const auto add = [&](uint64_t ServedTally::*field, int64_t more) {
    if (more != 0) AddTo(&(args.tally->*field), more);
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

/// Returns where a wanted expert is multiplied from, and lists its copy, if it needs one. `at`: its
/// slot's address, or null; `record`: of the version that answers.
__device__ __forceinline__ ExpertHandle PlaceExpert(const ServeMissesArgs& args,
                                                    const ServedRecord& record, int version,
                                                    uint8_t* at, bool miss, int miss_rank) {
  ExpertHandle handle{record.host, record.format, version};
  if (at != nullptr) handle.record = at;
  if (miss && at != nullptr) args.copies[miss_rank] = {record.host, at, record.bytes};
  return handle;
}

/// Adds up the records that are missing or answer low, in words of 16 bytes, of which records are
/// multiples. Called by all threads.
__device__ __forceinline__ void AddMissed(const ServedRecord& record, bool miss, uint32_t* words) {
  const auto mine = miss ? static_cast<uint32_t>(record.bytes / 16) : 0;
  const uint32_t of_warp = __reduce_add_sync(~0U, mine);
  if (threadIdx.x % 32 == 0 && of_warp > 0) atomicAdd(words, of_warp);
}

/// The decision's state in shared memory. The tiles reuse it afterwards (ServeScratch).
struct ServeTable {
  alignas(ServedExpert) uint8_t rows[kFewExperts * sizeof(ServedExpert)];
  RankScratch ranks;
  uint8_t* slots[kFewExperts];
  int32_t counts[kFewExperts];
  uint8_t held[kFewExperts], coming[kFewExperts];
  Lending lending;
  bool cpu_idle;
};
union ServeScratch {
  __device__ ServeScratch() {}
  ServeTable table;
  BothTilesScratch tiles;
};

/// Stores what is known where all threads see it, and which slots are held. Called by all threads.
__device__ __forceinline__ void ShareKnown(const ServeMissesArgs& args, const Known& known,
                                           ServeTable& table) {
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
    table.lending.gain = 0;
    table.lending.hole = args.experts;
    table.cpu_idle = known.cpu_idle;
  }
  __syncthreads();
  if (is_expert && lent && known.row.slot >= 0) table.held[known.row.slot] = 1;
  if (args.lenders.layers == 0) return;
  StoreLeast(known.least_lends, table.lending.lenders);
  if (e % 32 == 0) atomicMin(&table.lending.hole, known.hole);
}

/// Enters the tokens of the thread's expert. Returns what the expert is worth.
__device__ __forceinline__ double EnterCall(const ServeMissesArgs& args, const Known& known,
                                            int count, ServeTable& table) {
  if (threadIdx.x >= args.experts) return 0;
  table.counts[threadIdx.x] = count;
  return known.layer.lent != 0 ? AddCall(args, known, count) : 0;
}

/// Misses that need no slot.
struct AnsweredElsewhere {
  LowAnswered low;
  GivenToCpu cpu;
  __device__ __forceinline__ bool mine() const { return low.mine || cpu.mine; }
};
/// Decides which misses lower versions answer, and which of the others the CPU computes; these are
/// misses no more. given: as DecideCall; late: prefetched records that the call waits for. Called
/// by all threads.
template <bool kPlain, typename Slot>
__device__ __forceinline__ AnsweredElsewhere
AnswerElsewhere(const ServeMissesArgs& args, const ServeMissesArgs& given, const Known& known,
                int count, const CallPairs<Slot>& pairs, const LowCall& low_call,
                const int32_t& late, ServeTable& table, Standing* mine) {
  const bool cpu = args.cpu.call != nullptr && known.layer.lent != 0;
  const bool shares = cpu && table.cpu_idle;
  const bool reads = args.cpu.call != nullptr && args.cpu.reads_below != 0;
  AnsweredElsewhere elsewhere;
  if (!kPlain && low_call.accounts != nullptr) {
    const bool asks = mine->miss && !(shares && SparedByCpu(args.cpu, known.record, count));
    elsewhere.low = AnswerLow(args, low_call, pairs, table.counts, asks, count, table.ranks);
    if (elsewhere.low.mine) mine->miss = false;
  }
  if ((shares || reads || (cpu && args.ids != nullptr)) &&
      __syncthreads_or(mine->miss ? 1 : 0) != 0) {
    RoomForMisses room;
    room.free = __syncthreads_count(mine->free ? 1 : 0);
    room.idle = __syncthreads_count(mine->idle ? 1 : 0);
    room.coming = late;
    room.cpu = shares;
    elsewhere.cpu = ShareMisses(given, mine->miss, count, room, table.ranks);
    if (elsewhere.cpu.mine) mine->miss = false;
  }
  if (elsewhere.cpu.all == 0 && threadIdx.x == 0 && args.cpu.call != nullptr) {
    args.cpu.call->experts = 0;
  }
  return elsewhere;
}

/// Where the thread's expert is after the call.
struct PlacedExpert {
  ExpertHandle ready, late;  // its handle, in the wave that multiplies it
  int slot = -1;
  uint8_t* at = nullptr;  // the slot's address
};
/// Stores the row and the copy of the thread's expert. record: of the version that answers; coming:
/// its prefetched record is under way; after: its row after the call.
__device__ __forceinline__ PlacedExpert Place(const ServeMissesArgs& args, const Standing& mine,
                                              const AnsweredElsewhere& elsewhere,
                                              const ServedRecord& record, bool lent, bool coming,
                                              int count, int miss_rank, const ServedExpert& after,
                                              uint8_t* const* slots) {
  PlacedExpert placed;
  if (lent) args.rows[threadIdx.x] = after;
  placed.slot = after.slot;
  if (placed.slot >= 0) placed.at = slots[placed.slot];
  if (count > 0 && !elsewhere.cpu.mine) {
    const bool waits = coming || (mine.miss && placed.at != nullptr);
    const ExpertHandle handle =
        PlaceExpert(args, record, elsewhere.low.mine ? 1 : 0, placed.at, mine.miss, miss_rank);
    (waits ? placed.late : placed.ready) = handle;
  }
  return placed;
}

/// Sums over a call, in shared memory.
struct CallSums {
  uint32_t words;  // of 16 bytes, of missing records
  Prefetched prefetched;
  LeastKey spare;  // by worth, of the resident experts

  __device__ __forceinline__ void Clear() {
    words = 0;
    prefetched = Prefetched{};
  }
};
/// The decision about the thread's expert, and counts of the call.
struct Decided {
  double worth = 0;
  PlacedExpert placed;
  ServedCounts call;
  int wanted = 0, elsewhere = 0;  // experts of the call; those that are answered elsewhere
};
/// Decides which slots misses take, and where the thread's expert is after the call. Called by all
/// threads. Rows are read once and written at the end, so until then all threads see the state with
/// which the call began.
template <bool kPlain, typename Slot>
__device__ __forceinline__ Decided DecideSlots(const ServeMissesArgs& args,
                                               const ServeMissesArgs& given, const Known& known,
                                               int count, const CallPairs<Slot>& pairs,
                                               const LowCall& low_call, CallSums& sums,
                                               ServeTable& table) {
  auto* const rows = reinterpret_cast<ServedExpert*>(table.rows);
  const int e = threadIdx.x;
  const bool is_expert = e < args.experts, lent = known.layer.lent != 0;
  if (e == 0) sums.Clear();
  Decided decided{EnterCall(args, known, count, table)};
  __syncthreads();
  if (known.unsettled) {
    SettleAll(*args.prefetch, known, table.counts, rows, table.held, table.coming,
              &sums.prefetched);
  }
  const ServedExpert row = is_expert ? rows[e] : ServedExpert{};
  const bool coming = is_expert && table.coming[e] != 0;
  Standing mine;
  mine.wanted = is_expert && count > 0;
  mine.miss = mine.wanted && row.slot < 0;
  mine.idle = row.slot >= 0 && count == 0;
  mine.free = is_expert && lent && table.held[e] == 0;
  const AnsweredElsewhere elsewhere = AnswerElsewhere<kPlain>(
      args, given, known, count, pairs, low_call, sums.prefetched.late, table, &mine);
  const ServedRecord record = elsewhere.low.mine ? args.low.records[e] : known.record;
  StandingBefore before{};
  ServedCounts call = CountStandings(mine, &decided.wanted, &before);
  int miss_rank = 0, victim_rank = args.experts;
  if (call.misses > 0) {
    RankSlots(call, mine, row, count, decided.worth, before, args.experts, table.ranks, &miss_rank,
              &victim_rank);
  }
  if (args.lenders.layers > 0 && lent && call.misses > call.free) {
    Borrow(args, known, mine, decided.worth, miss_rank, victim_rank, table.lending, table.slots,
           table.ranks.places, &call);
  }
  if (is_expert) {
    const ServedExpert after = elsewhere.mine()
                                   ? row  // it stays absent
                                   : AfterCall(row, count, known.layer.tick + 1, call,
                                               table.ranks.places, miss_rank, victim_rank);
    decided.placed =
        Place(args, mine, elsewhere, record, lent, coming, count, miss_rank, after, table.slots);
    const bool took = count > 0 && known.row.slot < 0 && !elsewhere.mine();
    if (args.taken != nullptr && took) ++args.taken[e];
  }
  AddMissed(record, mine.miss || elsewhere.low.mine, &sums.words);
  decided.call = call;
  decided.elsewhere = elsewhere.low.all + elsewhere.cpu.all;
  return decided;
}

/// Stores results that the rest of the call does not wait for. Called by all threads, after a
/// barrier.
template <typename Slot>
__device__ __forceinline__ void EndDecision(const ServeMissesArgs& args, const Known& known,
                                            int count, const CallPairs<Slot>& pairs,
                                            const Decided& decided, bool lends,
                                            const CallSums& sums) {
  const int e = threadIdx.x;
  const PlacedExpert& placed = decided.placed;
  if (lends && NumberOf(LeastOf(sums.spare)) == e && placed.at != nullptr) {
    OfferSpare(args.layer, decided.worth, placed.slot, placed.at);
  }
  const bool predicted = args.wanted != nullptr;
  if (e < args.experts && predicted) args.wanted[e] = WantedBy(args, pairs, e, count);
  if (e != static_cast<int>(blockDim.x) - 32) return;  // a warp with few experts, or none
  if (predicted) args.predicted->routed = args.tokens;
  EndCall(args, known.layer, decided.call, decided.wanted, decided.elsewhere,
          int64_t{16} * sums.words, sums.prefetched);
}

/// The whole decision of a call that the device multiplies, after ShareKnown and the end of the
/// preceding kernels. `count`: tokens of the thread's expert; low_call: that of args, in any
/// memory; given: the kernel's own args, for functions that are not inlined. kPlain: as ReadKnown;
/// kOneTileEach: as MakeBothTiles. Called by all threads.
template <bool kPlain, bool kOneTileEach = false, typename Slot>
__device__ __forceinline__ void DecideCall(const ServeMissesArgs& args,
                                           const ServeMissesArgs& given, const Known& known,
                                           int count, const CallPairs<Slot>& pairs,
                                           const LowCall& low_call, ServeScratch& scratch) {
  __shared__ CallSums sums;
  const int e = threadIdx.x;
  Decided decided =
      DecideSlots<kPlain>(args, given, known, count, pairs, low_call, sums, scratch.table);
  PlacedExpert& placed = decided.placed;
  const bool lends = args.lenders.layers > 0 && known.layer.lent != 0;
  if (lends) FindLeast(placed.at != nullptr, decided.worth, sums.spare);
  if (e == args.experts) placed.ready = known.shared;
  const bool tiles = args.makes_tiles != 0;
  const int first_pair = e < args.experts && tiles ? pairs.firsts[e] : 0;
  const int late = sums.prefetched.late + sums.prefetched.late_fills;
  __syncthreads();  // the tiles reuse the scratch
  // Runs beside the making of tiles if that takes few threads (kOneTileEach), else after it.
  const auto end = [&] { EndDecision(args, known, count, pairs, decided, lends, sums); };
  GiveWaves<kOneTileEach>(args, placed.ready, placed.late, count, first_pair,
                          decided.call.copies() + late > 0, scratch.tiles, [&] {
                            if (kOneTileEach) end();
                          });
  if (!kOneTileEach) end();
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_SERVE_CALL_CUH_
