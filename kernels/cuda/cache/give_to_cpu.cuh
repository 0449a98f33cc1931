// Decides which misses of a call the CPU takes, and writes its job (cpu_mailbox.h), by one CTA of
// kTileThreads, a thread per expert.
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

/// Whether the CPU computes a miss of `count` tokens sooner than its record could be loaded; asked
/// where low versions have to be loaded, too (spares_low).
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
/// The slots for a call's misses, and whether the CPU can take some.
struct RoomForMisses {
  int free = 0;    // empty slots
  int idle = 0;    // experts that may leave
  int coming = 0;  // records under way that the call waits for
  // Whether the CPU is idle. If not, it is given only misses that find no slot and that it alone
  // can compute.
  bool cpu = false;
};
/// Decides which misses the CPU computes. `miss`: the thread's expert is missing; `below`: and the
/// device cannot read its record, as those of `all_below` experts. Called by all threads; the
/// scratch is free afterwards.
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
    // A product by the host reads only slots.
    if (args.ids != nullptr && loaded > room.free + room.idle) loaded = room.free + room.idle;
  }
  __syncthreads();
  given.mine = below || (miss && rank >= loaded);
  given.all = all_below + misses - loaded;
  return given;
}

/// Copies the rows of x, one behind the other, in words of T. Called by all threads.
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

/// Enters the thread's expert into the job, behind `before` experts and `first` pairs. If the job
/// is `lost`, enters it only into the device's own list of slots.
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

/// Copies the call's rows into the job. Called by all threads.
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

/// Writes and posts the job of the given experts, `below` of which have a record that the device
/// cannot read. lost: the CPU still has another job, so this one is not posted. record: of the
/// thread's expert. Called by all threads.
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

/// A bound on looks at the mailbox. The clock should end them long before: a look across the link
/// takes about a microsecond.
constexpr int kMostLooks = 1 << 23;

/// Whether the CPU has answered its last job, or does so within kReadNs. Called by all threads.
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

/// GiveToCpu and PostGiven. Not inlined into the decision: most calls miss nothing, and most of
/// their time is instruction fetch.
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
