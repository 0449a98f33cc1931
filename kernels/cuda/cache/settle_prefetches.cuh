// Settles the prefetches for a call, as part of its decision (serve_call.cuh).
#ifndef MOERT_KERNELS_CUDA_CACHE_SETTLE_PREFETCHES_CUH_
#define MOERT_KERNELS_CUDA_CACHE_SETTLE_PREFETCHES_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/cache/known_call.cuh"
#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/cache/served_slots.cuh"

namespace moert::cuda {

/// The outcome of all of the layer's prefetches.
struct Prefetched {
  int arrived;  // wanted
  int late;     // likewise
  int wasted;
  int fills;  // that are there or will be
  int late_fills;
  int inserted;  // fills too
  int evicted;
  unsigned long long bytes, fill_bytes;
};

/// Drops, stops or continues the prefetches for the call, and changes `rows` and `held`
/// accordingly. coming: [experts], zeros before; set for experts that the products wait for. Called
/// by all threads.
__device__ __forceinline__ void SettleAll(LayerPrefetch& list, const Known& known,
                                          const int32_t* counts, ServedExpert* rows, uint8_t* held,
                                          uint8_t* coming, Prefetched* sums) {
  const int i = threadIdx.x;
  if (known.listed) {
    const PrefetchedRecord& record = known.prefetched;
    PrefetchedRecord& moving = list.records[i];
    const bool wanted = counts[record.expert] > 0;
    const int state =
        known.closed ? record.state : atomicCAS(&moving.state, kPrefetchListed, kPrefetchDropped);
    const int done = LoadAcquire(&moving.done);
    if (state == kPrefetchBegun && done < kCopyCtas && !wanted) {
      atomicExch(&moving.state, kPrefetchStopped);
    }
    const PrefetchEnd end = EndOfPrefetch(state, done, wanted);
    SettlePrefetch(record, end, known.layer.tick, rows);
    if (end == PrefetchEnd::kUnderWay) coming[record.expert] = 1;
    const bool arrived = end == PrefetchEnd::kArrived, late = end == PrefetchEnd::kUnderWay;
    const bool fill = record.fill != 0;
    if (arrived && wanted && !fill) atomicAdd(&sums->arrived, 1);
    if (late) atomicAdd(fill ? &sums->late_fills : &sums->late, 1);
    if (arrived || late) atomicAdd(&sums->inserted, 1);
    if ((arrived || late) && fill) atomicAdd(&sums->fills, 1);
    if ((end == PrefetchEnd::kBroken || (arrived && !wanted)) && !fill) atomicAdd(&sums->wasted, 1);
    if (end != PrefetchEnd::kNothing) {
      held[record.slot] = arrived || late ? 1 : 0;
      if (record.victim >= 0) atomicAdd(&sums->evicted, 1);
      atomicAdd(fill ? &sums->fill_bytes : &sums->bytes,
                static_cast<unsigned long long>(record.copy.bytes));
    }
  }
  __syncthreads();
  if (i == 0) list.settled = 1;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_SETTLE_PREFETCHES_CUH_
