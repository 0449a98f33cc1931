// Experts of a captured call that the CPU multiplies: how the device hands them over, and takes
// them back from a CPU that is late.
//
// The decision of a call (serve_misses.h) writes a job into mapped host memory and posts its
// number. A thread of the host that looks for it multiplies, writes the rows into mapped memory and
// answers with the number. Beside the call's copies and products one CTA waits for the answer. It
// fetches the rows into their slots; or, when the deadline has passed, makes tiles of the experts,
// which the device then multiplies where their records lie, as any miss without a slot. The
// weighted sum is behind all of this.
//
// Every word has one writer, since not every link between device and host has atomic operations
// that both sides see. So a job is never claimed. That CTA alone decides which rows count: it looks
// until there is an answer or the deadline has passed, and the rest of the call follows what it
// found. An answer that comes later changes nothing. A job is posted only when the last one was
// answered: the memory of a job, and of its rows, has one owner at any time, and a CPU that is late
// for one job is given no other.
//
// Nothing can wait for ever. The host's thread waits for no job: it looks, sleeps, and is told to
// end. The CTA's looks are bounded by the device's clock, and by a number of them should the clock
// stand still; it needs no other kernel while it looks, and those behind it need only its end. In
// particular:
// - A host's thread that never runs costs one deadline: the call takes its experts back, and no
//   later call finds the last job answered, so none gives any and none waits.
// - A graph that is replayed while the thread sleeps, outside of steps: the same. The next step
//   wakes the thread, which answers the old job, though nothing waits for the answer any more.
// - An engine that is destroyed waits for its steps' kernels first, while the thread still runs;
//   each ends by an answer or by its deadline. Then the thread ends, and a job that was posted and
//   taken back is left alone. The memory of jobs goes last.
// - A job that fails is answered as having no rows, and taken back at once.
//
// Where the product is the host's (Engine::Fetch), only the CPU can multiply the experts that it
// was given: the deadline is kOwedNs later, and rows that have not come by then are NaN. It is
// given every miss for which the layer has no slot; while it is late for an earlier job those are
// NaN, too.
//
// Where the host keeps not all records in pinned memory (CpuShareArgs::reads_below), the CPU is
// given every miss whose record is elsewhere: it reads the record, and then multiplies. The
// decision waits up to kReadNs for an earlier job, and the call waits kReadNs longer for the rows;
// rows that do not come are NaN.
#ifndef MOERT_KERNELS_CUDA_CACHE_CPU_MAILBOX_H_
#define MOERT_KERNELS_CUDA_CACHE_CPU_MAILBOX_H_

#include <cstdint>

#include "kernels/cuda/device_types.h"
#include "kernels/cuda/route/route.h"
#include "kernels/cuda/route/rows.h"
#include "rules/cpu_share.h"

struct CUstream_st;

namespace moert::cuda {

static_assert(kMostCpuTokens == kFewTokens);

/// How much longer the device waits for rows that only the CPU can compute, and for those whose
/// records have to be read from a disk first.
constexpr uint64_t kOwedNs = 2'000'000'000;
constexpr uint64_t kReadNs = 10'000'000'000;

/// In mapped host memory. Jobs are numbered from 1 on.
struct CpuMailbox {
  alignas(128) uint64_t posted = 0;    // the device's: the last job
  alignas(128) uint64_t answered = 0;  // the host's: twice the last job that is over, 1 more if it
                                       // has rows
};

/// After this load, all stores are visible that the other side made before it stored the value.
MOERT_HOST_DEVICE inline uint64_t LoadAcquireSystem(const uint64_t* at) {
#ifdef __CUDA_ARCH__
  uint64_t value = 0;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
#else
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}
MOERT_HOST_DEVICE inline void StoreReleaseSystem(uint64_t* at, uint64_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
#else
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
#endif
}

// The device's side.

/// The call that runs, and what is known of the mailbox. In device memory.
struct alignas(16) CpuCall {
  uint64_t posted = 0;    // the last job
  uint64_t settled = 0;   // the last one whose answer was seen
  uint64_t deadline = 0;  // of the device's clock, ns
  int64_t bytes = 0;      // of the experts' records
  int32_t experts = 0;    // 0: this call gave none
  int32_t pairs = 0;
  int32_t lost = 0;   // 1: the experts could not be given to the CPU
  int32_t below = 0;  // of the experts: those whose records the device cannot read
};

enum class CpuAnswer : int32_t {
  kNone = 0,  // yet
  kRows = 1,
  kNoRows = 2,
};
MOERT_HOST_DEVICE inline CpuAnswer AnswerTo(const CpuMailbox& mailbox, uint64_t job) {
  const uint64_t answered = LoadAcquireSystem(&mailbox.answered);
  if (answered / 2 != job) return CpuAnswer::kNone;
  return answered % 2 != 0 ? CpuAnswer::kRows : CpuAnswer::kNoRows;
}
/// Whether the last job was answered: then its memory may be written.
MOERT_HOST_DEVICE inline bool CpuIdle(const CpuMailbox& mailbox, const CpuCall& call) {
  return call.posted == call.settled || AnswerTo(mailbox, call.posted) != CpuAnswer::kNone;
}
/// Posts the next job, whose memory has been written. `call`: has its experts, pairs and bytes.
MOERT_HOST_DEVICE inline void PostJob(CpuMailbox* mailbox, CpuCall* call, uint64_t now_ns,
                                      int64_t planned_ns) {
  call->deadline = now_ns + static_cast<uint64_t>(CpuPatience(planned_ns));
  ++call->posted;
  StoreReleaseSystem(&mailbox->posted, call->posted);
}
/// How much later than the deadline a job's rows may come. `owed`: the product is the host's.
MOERT_HOST_DEVICE inline uint64_t ExtraNs(const CpuCall& call, bool owed) {
  return call.below > 0 ? kReadNs : owed ? kOwedNs : 0;
}
/// Whether to look at the mailbox again, after a look.
MOERT_HOST_DEVICE inline bool KeepsLooking(const CpuCall& call, CpuAnswer found, uint64_t now_ns) {
  return found == CpuAnswer::kNone && now_ns < call.deadline;
}
/// Records the outcome of the last look.
MOERT_HOST_DEVICE inline void SettleJob(CpuCall* call, CpuAnswer found) {
  if (found != CpuAnswer::kNone) call->settled = call->posted;
}

// The host's side, by one thread.

/// A job that is not answered; 0: there is none.
inline uint64_t PostedJob(const CpuMailbox& mailbox) {
  const uint64_t posted = LoadAcquireSystem(&mailbox.posted);
  return posted != LoadAcquireSystem(&mailbox.answered) / 2 ? posted : 0;
}
/// Answers a job; its memory is the device's again. rows: whether its rows were written.
inline void AnswerJob(CpuMailbox* mailbox, uint64_t job, bool rows) {
  StoreReleaseSystem(&mailbox->answered, 2 * job + (rows ? 1 : 0));
}

struct CpuJobExpert {
  int32_t expert = 0;
  int32_t pairs = 0;
};
struct CpuJob {
  int32_t layer = 0;
  int32_t tokens = 0;
  int32_t cols = 0;
  int32_t dtype = 0;  // of x, as DeviceRows
  int32_t experts = 0;
  int32_t pairs = 0;  // of all of them
  int32_t below = 0;  // of the experts: those that only the CPU can compute
};
/// A job and its rows, in mapped host memory.
struct CpuJobMemory {
  CpuMailbox* mailbox = nullptr;
  CpuJob* job = nullptr;
  CpuJobExpert* experts = nullptr;  // [experts]
  int32_t* slots = nullptr;         // [pairs], expert by expert
  float* weights = nullptr;         // [pairs], likewise
  uint8_t* x = nullptr;             // [tokens, cols], one row behind the other
  float* rows = nullptr;            // [pairs, cols], the answer
};

/// A decision needs these to give misses to the CPU. Device memory but for `memory`.
struct CpuShareArgs {
  CpuCall* call = nullptr;  // null: it gives none
  const CpuCosts* costs = nullptr;
  int32_t by_completion = 0;  // else in turns
  int32_t spares_low = 0;     // misses that it computes sooner than a load are not answered low
  int32_t reads_below = 0;    // the device cannot read every record
  int32_t layer = 0;
  DeviceRows x;
  const float* weights = nullptr;  // [tokens, top_k]; null: ones
  CpuJobMemory memory;
  int32_t* slots = nullptr;         // [pairs]: as the job's
  ExpertHandle* handles = nullptr;  // [experts + 1]: of the experts given; others have no record
};

struct ServedTally;

struct AwaitCpuArgs {
  CpuCall* call = nullptr;
  int32_t owed = 0;  // if so, no tiles are made, and rows that do not come are NaN
  CpuJobMemory memory;
  const int32_t* slots = nullptr;
  float* out = nullptr;  // [slots, out_stride]
  int64_t out_stride = 0;
  int32_t cols = 0;
  MakeTilesArgs tiles;  // of the experts given, by their handles
  ServedTally* tally = nullptr;
};
/// Brings the rows that the CPU computed for the call into their slots, and leaves tiles.table
/// without tiles; or takes the experts back, and makes their tiles. By one CTA, which lets no
/// kernel begin before it ends. For layers of up to kFewExperts experts. Returns 0 or a
/// cudaError_t.
int LaunchAwaitCpu(const AwaitCpuArgs& args, CUstream_st* stream);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_CPU_MAILBOX_H_
