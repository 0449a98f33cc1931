#include <cuda_runtime.h>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/route.h"
#include "kernels/cuda/serve_misses.h"

namespace moert::cuda {
namespace {

constexpr int kMostThreads = kMaxExperts + 32;

/// One CTA: a thread an expert, which also looks after the slot of its number. The rows are read
/// once and written at the end; between barriers everybody reads what the call began with.
__global__ void __launch_bounds__(kMostThreads)
    ServeMissesKernel(const __grid_constant__ ServeMissesArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ alignas(ServedExpert) uint8_t shared_rows[kMaxExperts * sizeof(ServedExpert)];
  auto* const rows = reinterpret_cast<ServedExpert*>(shared_rows);
  __shared__ int32_t counts[kMaxExperts];
  __shared__ int32_t places[kMaxExperts];
  __shared__ uint8_t held[kMaxExperts];
  __shared__ unsigned long long bytes;
  const int e = threadIdx.x;
  const bool is_expert = e < args.experts;
  const ServedLayer layer = *args.layer;
  const int slots = layer.lent != 0 ? layer.slots : 0;
  ServedExpert row;
  int count = 0;
  if (e == 0) bytes = 0;
  if (is_expert) {
    row = args.rows[e];
    if (layer.lent == 0) row = ServedExpert{};
    count = args.counts[e];
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
    if (free) {
      int rank = 0;
      for (int s = 0; s < e; ++s) rank += held[s] == 0 ? 1 : 0;
      places[rank] = e;
    }
    if (idle && call.misses > call.free) {
      victim_rank = VictimRank(counts, rows, args.experts, e);
      places[call.free + victim_rank] = row.slot;
    }
    if (miss) miss_rank = MissRank(counts, rows, args.experts, e);
    __syncthreads();
  }

  const int64_t tick = layer.tick + 1;
  if (is_expert) {
    const ServedExpert after = AfterCall(row, count, tick, call, places, miss_rank, victim_rank);
    if (layer.lent != 0) args.rows[e] = after;
    ExpertHandle ready, late;
    if (count > 0) {
      const ServedRecord record = args.records[e];
      ExpertHandle handle{record.host, record.format, 0};
      if (after.slot >= 0) handle.record = args.slots[after.slot];
      const bool copied = miss && after.slot >= 0;
      (copied ? late : ready) = handle;
      if (copied) {
        args.copies[miss_rank] = {record.host, args.slots[after.slot], record.bytes};
      }
      if (miss) atomicAdd(&bytes, static_cast<unsigned long long>(record.bytes));
    }
    args.ready[e] = ready;
    args.late[e] = late;
  }
  if (e == args.experts) {
    args.ready[e] = *args.shared;
    args.late[e] = ExpertHandle{};
  }
  __syncthreads();
  if (e != 0) return;
  if (layer.lent != 0) args.layer->tick = tick;
  *args.num_copies = call.copies();
  ServedTally tally = *args.tally;
  tally.lookups += wanted;
  tally.hits += wanted - call.misses;
  tally.loads += call.misses;
  tally.bytes += bytes;
  tally.evictions += call.evictions();
  *args.tally = tally;
}

}  // namespace

int LaunchServeMisses(const ServeMissesArgs& args, CUstream_st* stream) {
  const int threads = (args.experts + 1 + 31) / 32 * 32;
  return LaunchEarly(ServeMissesKernel, 1, threads, 0, stream, args);
}

}  // namespace moert::cuda
