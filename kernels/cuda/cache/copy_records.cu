// Copies records from mapped host memory to device memory by threads of the device, host -> shared
// -> device. One thread of each CTA keeps bulk copies under way; before sm_90 each thread of a warp
// keeps asynchronous copies of its own words under way.
#include <cuda_runtime.h>

#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/cache/served_prefetch.h"
#include "kernels/cuda/cache/served_slots.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/mbarrier.cuh"
#include "kernels/cuda/primitives/packing.cuh"

// MOERT_SMALLER_DEVICE: a test runs what older devices run.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && !defined(MOERT_SMALLER_DEVICE)
#define MOERT_BULK_COPIES
#endif

namespace moert::cuda {
namespace {

constexpr int kStages = 8;
constexpr int kStageBytes = 8192;
constexpr int kSharedBytes = kStages * kStageBytes;
static_assert(kSharedBytes < kLeastShared);

/// The pieces of all records that fall to one CTA: every kCopyCtas-th.
class Pieces {
 public:
  __device__ Pieces(const RecordCopy* copies, int count, int first)
      : copies_(copies), left_(count) {
    if (left_ > 0) copy_ = *copies_;
    Move(first);
  }
  __device__ bool done() const { return left_ == 0; }
  __device__ const uint8_t* from() const { return copy_.from + at_; }
  __device__ uint8_t* to() const { return copy_.to + at_; }
  __device__ uint32_t bytes() const {
    const int64_t rest = copy_.bytes - at_;
    return static_cast<uint32_t>(rest < kStageBytes ? rest : kStageBytes);
  }
  __device__ void Next() { Move(kCopyCtas); }

 private:
  __device__ void Move(int pieces) {
    at_ += int64_t{pieces} * kStageBytes;
    while (left_ > 0 && at_ >= copy_.bytes) {
      at_ -= (copy_.bytes + kStageBytes - 1) / kStageBytes * kStageBytes;
      if (--left_ > 0) copy_ = *++copies_;
    }
  }

  const RecordCopy* copies_;
  RecordCopy copy_;
  int left_;
  int64_t at_ = 0;
};

/// Begins to copy a piece to shared memory. The phase of `arrived` ends when all its bytes are
/// there.
__device__ void BeginPiece(const Pieces& piece, uint32_t shared, uint64_t* arrived) {
  const uint32_t barrier = SharedAddress(arrived);
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(piece.bytes())
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(piece.from()), "r"(piece.bytes()), "r"(barrier)
      : "memory");
}

__device__ void AwaitPiece(uint64_t* arrived, int parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred done;\nmbarrier.try_wait.parity.shared.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n}"
        : "=r"(done)
        : "r"(SharedAddress(arrived)), "r"(parity)
        : "memory");
  }
}

__device__ void EndPiece(const Pieces& piece, uint32_t shared) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(piece.to()),
               "r"(shared), "r"(piece.bytes())
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Whether the copies were stopped. With a null `state` they never are.
__device__ bool SaysStopped(const int32_t* state) {
  return state != nullptr && *static_cast<const volatile int32_t*>(state) == kPrefetchStopped;
}

/// Copies the pieces with bulk copies: one stage is being emptied while the others fill. `number`:
/// counts the pieces of the CTA over all calls. Returns false if it was stopped.
[[maybe_unused]] __device__ bool CopyByBulk(Pieces arriving, const int32_t* state, uint32_t shared,
                                            uint64_t* arrived, int* number) {
  Pieces leaving = arriving;
  int begun = *number;
  for (int i = 1; i < kStages && !arriving.done(); ++i, ++begun, arriving.Next()) {
    BeginPiece(arriving, shared + begun % kStages * kStageBytes, arrived + begun % kStages);
  }
  bool stopped = false;
  for (int ended = *number; ended < begun; ++ended, leaving.Next()) {
    const int stage = ended % kStages;
    stopped = stopped || SaysStopped(state);
    AwaitPiece(arrived + stage, ended / kStages & 1);
    if (stopped) continue;  // pieces under way still arrive
    EndPiece(leaving, shared + stage * kStageBytes);
    if (arriving.done()) continue;
    // Waits until all emptied stages may be filled again; the next one is among them.
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    const int next = begun++ % kStages;
    BeginPiece(arriving, shared + next * kStageBytes, arrived + next);
    arriving.Next();
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  *number = begun;
  return !stopped;
}

constexpr uint32_t kWord = 16;

/// Begins to copy this thread's words of a piece: every 32nd.
__device__ __forceinline__ void BeginWords(const Pieces& piece, uint32_t shared) {
#pragma unroll 4
  for (uint32_t at = threadIdx.x * kWord; at < piece.bytes(); at += 32 * kWord) {
    CopyAsync16(shared + at, piece.from() + at, true);
  }
}

__device__ __forceinline__ void EndWords(const Pieces& piece, const uint8_t* stage) {
#pragma unroll 4
  for (uint32_t at = threadIdx.x * kWord; at < piece.bytes(); at += 32 * kWord) {
    *reinterpret_cast<uint4*>(piece.to() + at) = *reinterpret_cast<const uint4*>(stage + at);
  }
}

/// SaysStopped for a whole warp, read by one lane.
__device__ bool IsStopped(const int32_t* state) {
  return state != nullptr && __any_sync(~0U, threadIdx.x == 0 && SaysStopped(state)) != 0;
}

/// The same without bulk copies: each thread waits only for its own words. Returns false if it was
/// stopped.
[[maybe_unused]] __device__ bool CopyByWords(Pieces arriving, const int32_t* state,
                                             uint8_t* stages) {
  Pieces leaving = arriving;
  int begun = 0;
  const auto begin = [&] {
    if (!arriving.done()) {
      BeginWords(arriving, SharedAddress(stages) + begun % kStages * kStageBytes);
      arriving.Next();
    }
    CopyAsyncCommit();  // also if nothing is left, since waits count groups
    ++begun;
  };
  while (begun < kStages - 1) begin();
  for (int ended = 0; !leaving.done(); ++ended, leaving.Next()) {
    if (IsStopped(state)) {
      CopyAsyncWait<0>();
      return false;
    }
    begin();
    CopyAsyncWait<kStages - 1>();
    EndWords(leaving, stages + ended % kStages * kStageBytes);
  }
  return true;
}

[[maybe_unused]] __device__ void InitStages(uint64_t* arrived) {
  for (int i = 0; i < kStages; ++i) InitMbarrier(arrived + i);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__global__ void __launch_bounds__(32)
    CopyRecordsKernel(const RecordCopy* copies, const int32_t* num_copies) {
  extern __shared__ __align__(128) uint8_t stages[];
#ifdef MOERT_BULK_COPIES
  __shared__ uint64_t arrived[kStages];
  if (threadIdx.x != 0) return;
  const int count = *num_copies;
  if (count == 0) return;
  InitStages(arrived);
  int number = 0;
  CopyByBulk(Pieces(copies, count, static_cast<int>(blockIdx.x)), nullptr, SharedAddress(stages),
             arrived, &number);
#else
  const int count = *num_copies;
  if (count == 0) return;
  CopyByWords(Pieces(copies, count, static_cast<int>(blockIdx.x)), nullptr, stages);
#endif
}

/// Marks the record as begun. Returns whether the CTA is to copy its pieces. Called by one thread.
__device__ bool BeginPrefetched(PrefetchedRecord* record) {
  const int32_t before = atomicCAS(&record->state, kPrefetchListed, kPrefetchBegun);
  return before == kPrefetchListed || before == kPrefetchBegun;
}

__device__ void EndPrefetched(PrefetchedRecord* record) {
  __threadfence();
  atomicAdd(&record->done, 1);
}

/// Copies record by record, in the order of the list. It waits for no other kernel: a record is
/// stopped by its `state`, which is read between pieces.
__global__ void __launch_bounds__(32) CopyPrefetchedKernel(LayerPrefetch* prefetch) {
  extern __shared__ __align__(128) uint8_t stages[];
#ifdef MOERT_BULK_COPIES
  __shared__ uint64_t arrived[kStages];
  if (threadIdx.x != 0) return;
  const int count = prefetch->count;
  if (count == 0) return;
  InitStages(arrived);
  int number = 0;
  for (int i = 0; i < count; ++i) {
    PrefetchedRecord* record = prefetch->records + i;
    if (!BeginPrefetched(record)) continue;
    const Pieces pieces(&record->copy, 1, static_cast<int>(blockIdx.x));
    if (!CopyByBulk(pieces, &record->state, SharedAddress(stages), arrived, &number)) {
      continue;
    }
    // The bytes, written by bulk copies, are to be read by other CTAs' loads.
    asm volatile("fence.proxy.async;" ::: "memory");
    EndPrefetched(record);
  }
#else
  const int count = prefetch->count;
  for (int i = 0; i < count; ++i) {
    PrefetchedRecord* record = prefetch->records + i;
    int begun = 0;
    if (threadIdx.x == 0) begun = BeginPrefetched(record) ? 1 : 0;
    if (__shfl_sync(0xffffffffU, begun, 0) == 0) continue;
    const Pieces pieces(&record->copy, 1, static_cast<int>(blockIdx.x));
    if (!CopyByWords(pieces, &record->state, stages)) continue;
    __threadfence();
    __syncwarp();
    if (threadIdx.x == 0) EndPrefetched(record);
  }
#endif
}

/// Lets the kernel have the shared memory of its stages.
template <typename Kernel>
cudaError_t AllowStages(Kernel* kernel) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
}

cudaLaunchConfig_t CopyConfig(cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kCopyCtas);
  config.blockDim = dim3(32);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  return config;
}

}  // namespace

int LaunchCopyRecords(const RecordCopy* copies, const int32_t* num_copies, CUstream_st* stream) {
  const cudaError_t error = AllowStages(CopyRecordsKernel);
  if (error != cudaSuccess) return error;
  const cudaLaunchConfig_t config = CopyConfig(stream);
  return cudaLaunchKernelEx(&config, CopyRecordsKernel, copies, num_copies);
}

int LaunchCopyPrefetched(LayerPrefetch* prefetch, CUstream_st* stream) {
  const cudaError_t error = AllowStages(CopyPrefetchedKernel);
  if (error != cudaSuccess) return error;
  const cudaLaunchConfig_t config = CopyConfig(stream);
  return cudaLaunchKernelEx(&config, CopyPrefetchedKernel, prefetch);
}

int AddCopyPrefetched(CUgraph_st* graph, CUgraphNode_st* const* behind, size_t count,
                      LayerPrefetch* prefetch, CUgraphNode_st** node) {
  cudaError_t error = AllowStages(CopyPrefetchedKernel);
  if (error != cudaSuccess) return error;
  void* params[] = {&prefetch};
  cudaKernelNodeParams launch{};
  launch.func = reinterpret_cast<void*>(CopyPrefetchedKernel);
  launch.gridDim = dim3(kCopyCtas);
  launch.blockDim = dim3(32);
  launch.sharedMemBytes = kSharedBytes;
  launch.kernelParams = params;
  error = cudaGraphAddKernelNode(node, graph, behind, count, &launch);
  if (error != cudaSuccess) return error;
  // The priority of the copies before it. Otherwise products that fill the device would make it
  // wait for their end.
  int lowest = 0, highest = 0;
  error = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
  if (error != cudaSuccess) return error;
  cudaKernelNodeAttrValue value{};
  value.priority = highest;
  return cudaGraphKernelNodeSetAttribute(*node, cudaLaunchAttributePriority, &value);
}

}  // namespace moert::cuda
