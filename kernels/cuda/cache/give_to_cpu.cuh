// Which misses of a call the CPU takes, and the job that it is given, by one CTA of kTileThreads, a
// thread an expert (cpu_mailbox.h).
#ifndef MOERT_KERNELS_CUDA_CACHE_GIVE_TO_CPU_CUH_
#define MOERT_KERNELS_CUDA_CACHE_GIVE_TO_CPU_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/cache/rank_slots.cuh"
#include "kernels/cuda/cache/serve_misses.h"

namespace moert::cuda {

/// The device's clock, in ns.
__device__ __forceinline__ uint64_t ClockNs() {
  uint64_t ns = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

/// Whether the CPU computes a miss of so many tokens before it could be brought, where low versions
/// have to be brought, too.
__device__ __forceinline__ bool SparedByCpu(const CpuShareArgs& cpu, const ServedRecord& record,
                                            int count) {
  if (cpu.spares_low == 0 || count > kMostCpuTokens) return false;
  const int64_t read = record.host == nullptr ? cpu.costs->read : 0;
  return cpu.costs->tokens[count] + read < cpu.costs->load;
}

struct GivenToCpu {
  bool mine = false;  // the thread's expert
  int all = 0;
};
/// The room that a call's misses find.
struct RoomForMisses {
  int free = 0;    // slots of nobody
  int idle = 0;    // experts that may leave
  int coming = 0;  // records on their way that the call wants
  // It is idle; else it is given only what finds no slot and nobody else computes.
  bool cpu = false;
};
/// `miss`: the thread's expert is missing; `below`: and its record is where the device cannot read
/// it, as of `all_below` experts. By all threads; the scratch is free again.
__device__ __forceinline__ GivenToCpu GiveToCpu(const ServeMissesArgs& args, bool miss, bool below,
                                                int all_below, int count, const RoomForMisses& room,
                                                RankScratch& scratch) {
  __shared__ int loaded, listed;
  __shared__ unsigned long long owed;
  const int e = threadIdx.x;
  GivenToCpu given;
  if (e == 0) {
    listed = loaded = 0;
    owed = 0;
  }
  given.mine = below;
  given.all = all_below;
  miss = miss && !below;
  const int misses = __syncthreads_count(miss ? 1 : 0);
  if (misses == 0) return given;
  if (below) {
    atomicAdd(&owed, static_cast<unsigned long long>(args.cpu.costs->tokens[count] +
                                                     args.cpu.costs->read));
  }
  if (miss) scratch.missing[atomicAdd(&listed, 1)] = MissKey(count, e);
  __syncthreads();
  const int rank = miss ? RankOf(scratch.missing, misses, MissKey(count, e)) : 0;
  if (miss) scratch.places[rank] = count;
  __syncthreads();
  if (e == 0) {
    const CpuCosts& costs = *args.cpu.costs;
    loaded = room.cpu
                 ? MissesLoaded(costs, args.cpu.by_completion != 0, scratch.places, misses,
                                room.free, room.coming * costs.load / 2, static_cast<int64_t>(owed))
                 : misses;
    // The host's product reads slots alone.
    if (args.ids != nullptr && loaded > room.free + room.idle) loaded = room.free + room.idle;
  }
  __syncthreads();
  given.mine = below || (miss && rank >= loaded);
  given.all = all_below + misses - loaded;
  return given;
}

/// By all threads: rows of x, one behind the other, in words of T.
template <typename T>
__device__ __forceinline__ void CopyRowsOut(const DeviceRows& x, int element, uint8_t* to) {
  const int words = x.cols * element / static_cast<int>(sizeof(T));
  const auto* from = static_cast<const uint8_t*>(x.data);
  for (int i = threadIdx.x; i < x.rows * words; i += static_cast<int>(blockDim.x)) {
    const int row = i / words;
    reinterpret_cast<T*>(to)[i] =
        reinterpret_cast<const T*>(from + row * x.stride * element)[i - row * words];
  }
}

/// The thread's expert, `before` others and `first` pairs in front of it, enters the job, or, where
/// that is `lost`, what the device knows of it.
__device__ __forceinline__ void EnterJob(const ServeMissesArgs& args, int count, int before,
                                         int first, bool lost) {
  const CpuShareArgs& cpu = args.cpu;
  const int e = threadIdx.x;
  if (!lost) cpu.memory.experts[before] = {e, count};
  const auto enter = [&](int at, int32_t slot) {
    cpu.slots[at] = slot;
    if (lost) return;
    cpu.memory.slots[at] = slot;
    cpu.memory.weights[at] = cpu.weights != nullptr ? cpu.weights[slot] : 1.0f;
  };
  if (args.ids != nullptr) {
    for (int32_t i = 0; i < args.pairs; ++i) {
      if (args.ids[i] == e) enter(first++, i);
    }
    return;
  }
  const int32_t* slots = args.groups.sorted + args.groups.firsts[e];
  for (int i = 0; i < count; ++i) enter(first + i, slots[i]);
}

/// Copies the call's rows into the job. By all threads.
__device__ __forceinline__ void CopyRowsOut(const CpuShareArgs& cpu) {
  const DeviceRows& x = cpu.x;
  const int element = x.dtype == 0 ? 4 : 2;
  const bool aligned = (reinterpret_cast<uintptr_t>(x.data) | x.stride * element |
                        static_cast<int64_t>(x.cols) * element) %
                           sizeof(uint4) ==
                       0;
  if (aligned) {
    CopyRowsOut<uint4>(x, element, cpu.memory.x);
  } else {
    CopyRowsOut<uint16_t>(x, element, cpu.memory.x);
  }
}

/// Writes the job of those that were given, `below` of them for want of a record, and posts it,
/// unless it is `lost`: the CPU has another one. record: of the thread's expert. By all threads.
__device__ __forceinline__ void PostGiven(const ServeMissesArgs& args, const GivenToCpu& given,
                                          const ServedRecord& record, int below, int count,
                                          bool lost) {
  __shared__ unsigned long long planned, bytes;
  __shared__ Several<int, 2> sums[32];
  const CpuShareArgs& cpu = args.cpu;
  const int e = threadIdx.x;
  if (e == 0) planned = bytes = 0;
  if (e <= args.experts) {
    cpu.handles[e] = given.mine ? ExpertHandle{record.host, record.format, 0} : ExpertHandle{};
  }
  // Sums of experts and of pairs. Its barrier serves `planned` and `bytes`, too.
  Several<int, 2> all;
  const Several<int, 2> before =
      SumBefore(Several<int, 2>{{given.mine ? 1 : 0, given.mine ? count : 0}}, sums, &all);
  const int pairs = all.v[1];
  if (given.mine) {
    EnterJob(args, count, before.v[0], before.v[1], lost);
    const int64_t read = record.host == nullptr ? cpu.costs->read : 0;
    atomicAdd(&planned, static_cast<unsigned long long>(cpu.costs->tokens[count] + read));
    atomicAdd(&bytes, static_cast<unsigned long long>(record.bytes));
  }
  if (!lost) CopyRowsOut(cpu);
  __syncthreads();
  if (e != 0) return;
  CpuCall& call = *cpu.call;
  call.bytes = static_cast<int64_t>(bytes);
  call.experts = given.all;
  call.pairs = pairs;
  call.lost = lost ? 1 : 0;
  call.below = below;
  if (lost) return;
  *cpu.memory.job = {cpu.layer, cpu.x.rows, cpu.x.cols, cpu.x.dtype, given.all, pairs, below};
  // The host sees the writes of all threads before it sees the number.
  __threadfence_system();
  PostJob(cpu.memory.mailbox, &call, ClockNs(), static_cast<int64_t>(planned));
}

/// Looks should end by the clock long before: one across the link takes about a microsecond.
constexpr int kMostLooks = 1 << 23;

/// Whether the CPU has answered its last job, or has within kReadNs. By all threads.
__device__ __forceinline__ bool AwaitIdleCpu(const CpuShareArgs& cpu) {
  __shared__ bool idle;
  if (threadIdx.x == 0) {
    const CpuCall call = *cpu.call;
    const uint64_t deadline = ClockNs() + kReadNs;
    idle = CpuIdle(*cpu.memory.mailbox, call);
    for (int look = 0; !idle && look < kMostLooks && ClockNs() < deadline; ++look) {
      idle = CpuIdle(*cpu.memory.mailbox, call);
    }
  }
  __syncthreads();
  return idle;
}

/// GiveToCpu and PostGiven. No part of the decision's own code: most calls miss nothing, and what
/// they take is mostly the fetching of code.
static __device__ __noinline__ GivenToCpu ShareMisses(const ServeMissesArgs& args, bool miss,
                                                      int count, const RoomForMisses& room,
                                                      RankScratch& scratch) {
  ServedRecord record{};
  if (miss) record = args.records[threadIdx.x];
  const bool below = miss && record.host == nullptr;
  const int all_below = args.cpu.reads_below != 0 ? __syncthreads_count(below ? 1 : 0) : 0;
  const GivenToCpu given = GiveToCpu(args, miss, below, all_below, count, room, scratch);
  if (given.all == 0) return given;
  const bool posts = room.cpu || (all_below > 0 && AwaitIdleCpu(args.cpu));
  PostGiven(args, given, record, all_below, count, !posts);
  return given;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_GIVE_TO_CPU_CUH_
