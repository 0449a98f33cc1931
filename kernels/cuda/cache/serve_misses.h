// Misses of a layer call served by the device: after top-k, one CTA decides without the host which
// experts are resident, which leave and what is copied.
//
// There are three rules for the expert that leaves a layer's slots: it is the one that is worth
// least (ExpertUse), the one with the lowest average score (ScoreSums), or the one unused for
// longest. An expert of the call never leaves, misses wanted by more tokens come first, and a miss
// for which no slot is left is multiplied from mapped host memory. So a call of any size is right
// with any number of slots. While the host owns the slots (ServedLayer::lent is 0), every expert of
// a call is such a miss and nothing changes. With the rule by worth, where a policy's layers share
// their slots, a call that would evict an expert takes a slot of the layer whose least expert is
// worth less, if there is one (SlotLenders).
//
// Where experts have a lower version (LowVersions), it answers misses that weigh little in their
// requests, and is read in place. Where a CPU computes beside the device (cpu_mailbox.h), it takes
// some of the others, and all whose records the device cannot read. None of these is copied into a
// slot, so none evicts an expert.
//
// The functions below are the whole decision. The kernel calls each for its thread's expert; a unit
// test calls them on the host and compares them with the store's.
#ifndef MOERT_KERNELS_CUDA_CACHE_SERVE_MISSES_H_
#define MOERT_KERNELS_CUDA_CACHE_SERVE_MISSES_H_

#include <cstdint>
#include <cstring>

#include "base/ewma.h"
#include "kernels/cuda/cache/cpu_mailbox.h"
#include "kernels/cuda/device_types.h"
#include "kernels/cuda/route/route.h"
#include "rules/expert_use.h"
#include "rules/low_answers.h"

struct CUstream_st;

namespace moert::cuda {

/// The state of an expert in its layer.
struct alignas(16) ServedExpert {
  int64_t last_used = 0;  // tick of the last call that used it
  int32_t tokens = 0;     // of that call
  int32_t slot = -1;      // of the layer; -1: absent
};

/// Where the record of an expert lies in mapped host memory; null: the device cannot read it.
struct ServedRecord {
  const uint8_t* host = nullptr;
  int64_t bytes = 0;
  int32_t format = 0;  // index into the formats
};

struct ServedLayer {
  int64_t tick = 0;     // of the last call
  int32_t slots = 0;    // it owns, at most its experts
  int32_t lent = 0;     // 0: the host owns the slots
  int64_t calls = 0;    // that ExpertUse has seen
  double inserted = 1;  // mean insertions per call
  // The slot that another layer may take: that of the expert that was worth least after the layer's
  // last call.
  uint8_t* spare_at = nullptr;  // the slot's address; null: none
  float spare_worth = 0;
  int32_t spare_expert = -1;
  int32_t spare_slot = -1;
  /// A backfill scan is due: calls had misses answered elsewhere since the last one found nothing.
  int32_t elsewhere = 0;
};

/// The counts of calls since the engine opened; they only ever grow.
struct ServedTally {
  uint64_t lookups = 0;  // distinct experts of a call
  uint64_t hits = 0;
  uint64_t loads = 0;  // misses, copied or read in place, and fills
  uint64_t bytes = 0;  // of these
  uint64_t evictions = 0;
  // Prefetched records: listed; of these, used after arrival or while under way; begun and not
  // used.
  uint64_t listed = 0;
  uint64_t arrived = 0;
  uint64_t late = 0;
  uint64_t wasted = 0;
  uint64_t brought_bytes = 0;  // of those that began
  // By the expert-cache rule (expert_cache.h): slots whose expert was displaced, the mass of these,
  // and by how much the model's own choice had more mass than what was chosen.
  uint64_t substituted = 0;
  double mass_substituted = 0;
  double mass_lost = 0;
  double worst_slot_share = 0;  // the largest that any request has reached
  double worst_mass_share = 0;
  // For lower versions: misses that they answered, slots and mass of these, and the largest share
  // of its mass that any request has had answered so.
  uint64_t low = 0;
  uint64_t slots_low = 0;
  double mass_low = 0;
  double worst_low_share = 0;
  // Fills (PrefetchedRecord::fill); of these, wanted while they were under way. The counts of
  // prefetched records do not include them.
  uint64_t fills = 0;
  uint64_t late_fills = 0;
  // For the CPU: misses that it computed, and jobs that were taken back from it, whose misses are
  // loads.
  uint64_t on_cpu = 0;
  uint64_t taken_back = 0;
  // Among on_cpu those whose records the device cannot read; and experts that the CPU did not
  // compute in time and the device could not.
  uint64_t below = 0;
  uint64_t lost = 0;
};

/// A record on its way into a slot.
struct RecordCopy {
  const uint8_t* from = nullptr;
  uint8_t* to = nullptr;
  int64_t bytes = 0;
};

/// Sort key of misses: most tokens first, then the lower index.
MOERT_HOST_DEVICE inline uint32_t MissKey(int32_t tokens, int e) {
  constexpr int kMostTokens = 1 << 22;
  static_assert(kFewExperts <= 512);
  return static_cast<uint32_t>(kMostTokens - tokens) << 9 | static_cast<uint32_t>(e);
}

/// How many of the keys, in any order, are less than one. On an H200 that orders 8, 64 and 512
/// misses in 0.13, 0.34 and 4.2 us, cub::BlockRadixSort in 7 (gpu.cub_test [rates]).
MOERT_HOST_DEVICE inline int RankOf(const uint32_t* keys, int count, uint32_t key) {
  int rank = 0;
  for (int i = 0; i < count; ++i) rank += keys[i] < key ? 1 : 0;
  return rank;
}

/// Sort key of victims: worth least first, then unused for longest, then of the fewest tokens. The
/// default sorts last.
struct alignas(16) LeavingKey {
  uint64_t worth = ~uint64_t{0};
  uint64_t use = ~uint64_t{0};
};
/// `worth` is not NaN. Calls have up to 2^18 tokens, and there are up to 2^46 of them.
MOERT_HOST_DEVICE inline LeavingKey KeyOfLeaving(const ServedExpert& row, double worth) {
  const double plain = worth + 0.0;  // -0 is 0
  uint64_t bits = 0;
  memcpy(&bits, &plain, sizeof bits);
  LeavingKey key;
  key.worth = bits ^ (bits >> 63 != 0 ? ~uint64_t{0} : uint64_t{1} << 63);
  key.use = static_cast<uint64_t>(row.last_used) << 18 | static_cast<uint64_t>(row.tokens);
  return key;
}
/// The rank of expert e among those that may leave, of which it is one: by their keys, then the
/// lower index. keys: [experts].
MOERT_HOST_DEVICE inline int VictimRank(const LeavingKey* keys, int experts, int e) {
  const LeavingKey mine = keys[e];
  int rank = 0;
#ifdef __CUDA_ARCH__
#pragma unroll 4
#endif
  for (int other = 0; other < experts; ++other) {  // without branches
    const LeavingKey theirs = keys[other];
    const int sooner = static_cast<int>(theirs.use < mine.use) |
                       (static_cast<int>(theirs.use == mine.use) & static_cast<int>(other < e));
    rank += static_cast<int>(theirs.worth < mine.worth) |
            (static_cast<int>(theirs.worth == mine.worth) & sooner);
  }
  return rank;
}

/// CTAs that copy. Products beside them leave a multiprocessor free for each: a launch that fills
/// the device would make the copies wait for its end.
constexpr int kCopyCtas = 4;

/// A record that is prefetched, and the state of its copy.
enum PrefetchState : int32_t {
  kPrefetchListed = 0,
  kPrefetchBegun = 1,
  kPrefetchDropped = 2,  // before it began
  kPrefetchStopped = 3,  // after it began
};
struct PrefetchedRecord {
  RecordCopy copy;
  int32_t expert = -1;
  int32_t victim = -1;  // the expert in the slot; -1: none
  int32_t slot = -1;
  int32_t state = kPrefetchListed;
  int32_t done = 0;  // CTAs that have copied what falls to them
  int32_t fill = 0;  // 1: listed for its worth, not because it may be wanted now
};
constexpr int kMostPrefetched = 8;
/// The prefetched records of a layer.
struct LayerPrefetch {
  int32_t count = 0;
  int32_t settled = 1;
  PrefetchedRecord records[kMostPrefetched];
};

/// The outcome of a listed record.
enum class PrefetchEnd : int32_t {
  kNothing,   // as if it had not been listed
  kArrived,   // it is in its slot
  kUnderWay,  // it will be in its slot, and is wanted
  kBroken,    // its victim is gone and its slot is empty
};
/// `state`: before it was dropped or stopped; `wanted`: the call wants the record, so its copy goes
/// on.
MOERT_HOST_DEVICE inline PrefetchEnd EndOfPrefetch(int32_t state, int32_t done, bool wanted) {
  if (done == kCopyCtas) return PrefetchEnd::kArrived;
  if (state == kPrefetchListed || state == kPrefetchDropped) return PrefetchEnd::kNothing;
  return wanted && state == kPrefetchBegun ? PrefetchEnd::kUnderWay : PrefetchEnd::kBroken;
}
/// Changes the layer's rows accordingly. `tick`: of its last call.
MOERT_HOST_DEVICE inline void SettlePrefetch(const PrefetchedRecord& record, PrefetchEnd end,
                                             int64_t tick, ServedExpert* rows) {
  if (end == PrefetchEnd::kNothing) return;
  if (record.victim >= 0) rows[record.victim] = ServedExpert{};
  if (end == PrefetchEnd::kBroken) return;
  rows[record.expert].last_used = tick;
  rows[record.expert].tokens = 0;
  rows[record.expert].slot = record.slot;
}

/// Whether a prefetch that is wanted with `probability` pays; its victim is wanted with `victims`.
/// If it is right, the call does not wait, unless it now waits for the victim. If it is wrong, it
/// costs the uses of the victim until that had to leave anyway, about 1 / `inserted` calls.
MOERT_HOST_DEVICE inline bool PrefetchPays(double probability, double victims, double worth,
                                           double leaving, double inserted) {
  constexpr double kFewest = running_mean::kInserted.weight;  // of a call that brought one
  const double horizon = 1 / (inserted < kFewest ? kFewest : inserted);
  return probability - victims > (1 - probability) * (leaving - worth) * horizon;
}
/// Experts that one of a call's tokens uses with at least this probability are never evicted. It
/// grows with the tokens, as any expert becomes likelier, up to `least`, from which on experts are
/// prefetched.
MOERT_HOST_DEVICE inline double LikelyWanted(int tokens, double least) {
  constexpr double kByOne = 0.02;
  return tokens * kByOne < least ? tokens * kByOne : least;
}

/// A call that was predicted.
struct alignas(8) PredictedCall {
  int32_t tokens = 0;  // 0: none
  int32_t routed = 0;  // its tokens, once it was routed and `wanted` is known
};

/// Counts over the experts of a call.
struct ServedCounts {
  int32_t misses = 0;
  int32_t free = 0;      // empty slots
  int32_t idle = 0;      // experts that may leave
  int32_t borrowed = 0;  // slots of other layers; the last of `places` that are used
  MOERT_HOST_DEVICE int copies() const {
    const int most = free + idle + borrowed;
    return misses < most ? misses : most;
  }
  MOERT_HOST_DEVICE int evictions() const {
    const int there = free + borrowed;
    return copies() > there ? copies() - there : 0;
  }
};
/// The effect of a call on an expert, once it is ranked. `miss_rank` counts if it is wanted and
/// missing, `victim_rank` if it is resident and idle. places: [free + idle]: empty slots, then
/// those of the idle experts by victim rank. Returns the expert's state after the call; slot -1:
/// none.
MOERT_HOST_DEVICE inline ServedExpert AfterCall(const ServedExpert& before, int count, int64_t tick,
                                                const ServedCounts& call, const int32_t* places,
                                                int miss_rank, int victim_rank) {
  ServedExpert after = before;
  if (count == 0) {
    if (before.slot >= 0 && victim_rank < call.evictions()) after = ServedExpert{};
    return after;
  }
  if (before.slot < 0) {
    if (miss_rank >= call.copies()) return after;  // read in place
    after.slot = places[miss_rank];
  }
  after.last_used = tick;
  after.tokens = count;
  return after;
}

/// Layers that lend each other slots, one per call. A layer has [experts] places for slots; one
/// with a null address has none.
struct SlotLenders {
  int32_t layers = 0;  // all alike; 0: each keeps its own
  int32_t mine = 0;
  int32_t fewest = 0;                       // slots that a layer keeps
  ServedLayer* layer = nullptr;             // [layers]
  ServedExpert* rows = nullptr;             // [layers, experts]
  uint8_t** slots = nullptr;                // [layers, experts]
  const LayerPrefetch* prefetch = nullptr;  // [layers]
};
/// Sort key of lenders: by worth, then by number.
MOERT_HOST_DEVICE inline uint64_t LendingKey(float worth, uint32_t number) {
  uint32_t bits = 0;
  memcpy(&bits, &worth, sizeof bits);
  bits ^= bits >> 31 != 0 ? ~0U : 1U << 31;
  return static_cast<uint64_t>(bits) << 32 | number;
}
MOERT_HOST_DEVICE inline int NumberOf(uint64_t key) { return static_cast<int>(key & 0xffffffff); }
constexpr uint64_t kNobodyLends = ~uint64_t{0};
/// The key of a layer from which a call of layer `mine` may take a slot: not `mine` itself, nor the
/// next one, whose slots are being read meanwhile, nor one whose prefetches are not settled.
MOERT_HOST_DEVICE inline uint64_t LenderKey(const ServedLayer& layer, bool settled, int number,
                                            int mine, int fewest) {
  if (number == mine || number == mine + 1 || !settled || layer.lent == 0 ||
      layer.spare_at == nullptr || layer.slots <= fewest) {
    return kNobodyLends;
  }
  return LendingKey(layer.spare_worth, static_cast<uint32_t>(number));
}
/// Whether the worth of the expert with these ranks is what one more slot gains: it would leave
/// last or, where all idle experts leave, is the first miss that finds no slot.
MOERT_HOST_DEVICE inline bool SaysGain(const ServedCounts& call, bool miss, bool idle,
                                       int miss_rank, int victim_rank) {
  if (call.misses > call.free + call.idle) return miss && miss_rank == call.free + call.idle;
  return idle && victim_rank == call.misses - call.free - 1;
}
/// `lender`: the least LenderKey of all layers; `gain`: the worth of the expert that SaysGain.
MOERT_HOST_DEVICE inline bool Borrows(uint64_t lender, double gain) {
  return lender < LendingKey(static_cast<float>(gain), 0);
}

/// Misses that a lower version answers, in MissKey's order: those that WorthAnsweringLow names, as
/// far as the bound of each request allows. A record whose prefetch has begun is no miss.
struct LowVersions {
  const ServedRecord* records = nullptr;  // [experts], in any memory that the device reads
  LowCall call;                           // without accounts: none is answered so
  double patience = 1;
};

struct PredictArgs;

/// All pointers are device memory but those that say otherwise.
struct ServeMissesArgs {
  int32_t experts = 0;
  const int32_t* counts = nullptr;        // [experts] tokens of the call
  ServedLayer* layer = nullptr;           //
  ServedExpert* rows = nullptr;           // [experts]
  const ServedRecord* records = nullptr;  // [experts]
  uint8_t* const* slots = nullptr;        // [experts] where they lie; null: none
  const ExpertHandle* shared = nullptr;   // null: the call has no shared expert
  ServedTally* tally = nullptr;
  uint32_t* taken =
      nullptr;  // [experts] counts how often each record was read in host memory; or null
  // For the rest of the call. [experts + 1] each, the shared expert last: those that can be
  // multiplied at once and those that the copies bring; no record: not in this wave.
  ExpertHandle* ready = nullptr;
  ExpertHandle* late = nullptr;
  // State of the rule by worth, or null. scores: [tokens, experts] of the call, or null.
  ExpertUse* use = nullptr;  // [experts]
  const float* scores = nullptr;
  // State of the rule by average score (ScoreSums); window 0: another rule.
  int32_t window = 0;
  double* sums = nullptr;    // [experts]
  float* history = nullptr;  // [window, experts]
  int32_t tokens = 0;
  int32_t top_k = 1;
  SlotLenders lenders;
  int32_t answers_low = 0;  // whether misses may be answered low
  LowVersions low;          // not for a call that the host multiplies
  CpuShareArgs cpu;
  // Where records are prefetched; else null.
  LayerPrefetch* prefetch = nullptr;
  // Receives what the call wanted, for the prediction to learn from: [experts], a bit per token; or
  // null. groups: of the call.
  uint32_t* wanted = nullptr;
  PredictedCall* predicted = nullptr;
  SlotGroups groups;
  RecordCopy* copies = nullptr;   // [experts]
  int32_t* num_copies = nullptr;  // [1]
  // If so, also makes the tiles of both waves: ready ones in tiles.table, late ones in
  // `late_table`. tiles.handles are not read.
  int32_t makes_tiles = 0;
  MakeTilesArgs tiles;
  TileTable late_table;
  // For a call that the host multiplies, in place of counts, waves and tiles: the ids that it asks
  // for, and their slots. The slot of an address is its distance to `base`, times slots_a_byte.
  const int32_t* ids = nullptr;  // [pairs]; one that is not in [0, experts) is none. Or null
  int32_t pairs = 0;             //
  int32_t* found = nullptr;      // [pairs] receives slots, -1: none. Or null
  int32_t any_slot = 0;      // if so, a pair without a slot gets one that its token does not have
  int32_t* table = nullptr;  // [experts] receives the slot of every expert that is there, or -1
  const uint8_t* base = nullptr;  //
  double slots_a_byte = 1;        // 1 / the bytes from slot to slot
};

/// Decides, and changes the layer's rows. For layers of up to kFewExperts experts. Returns 0 or a
/// cudaError_t.
int LaunchServeMisses(const ServeMissesArgs& args, CUstream_st* stream);
/// LaunchRouteFew, without its tiles, and LaunchServeMisses in one launch. Does nothing without
/// tokens. `next`: null, or a prediction for another layer that a CTA beside the decision makes;
/// only for calls for which PredictsBeside is true.
int LaunchRouteAndServe(const RouteFewArgs& route, const ServeMissesArgs& args, CUstream_st* stream,
                        const PredictArgs* next = nullptr);
bool PredictsBeside(const RouteFewArgs& route, const ServeMissesArgs& args,
                    const PredictArgs& next);

/// Carries out the copies: host memory -> shared -> device memory. Addresses and bytes are
/// multiples of 16.
int LaunchCopyRecords(const RecordCopy* copies, const int32_t* num_copies, CUstream_st* stream);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_SERVE_MISSES_H_
