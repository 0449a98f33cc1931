// How layers give each other slots (SlotLenders), by the CTA of a decision (serve_call.cuh).
#ifndef MOERT_KERNELS_CUDA_CACHE_LEND_SLOTS_CUH_
#define MOERT_KERNELS_CUDA_CACHE_LEND_SLOTS_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/cache/known_call.cuh"
#include "kernels/cuda/cache/rank_slots.cuh"
#include "kernels/cuda/cache/serve_misses.h"

namespace moert::cuda {

/// The state of lending in a call.
struct Lending {
  LeastKey lenders;
  double gain;
  int hole;  // the first place of a slot that has none
};

/// Moves the lender's spare slot to this layer, at place `hole`. Called by the thread with the
/// lender's index.
__device__ __forceinline__ void TakeSlot(const SlotLenders& lenders, const ServedLayer& lender,
                                         int experts, int hole) {
  const int64_t d = threadIdx.x;
  lenders.rows[d * experts + lender.spare_expert] = ServedExpert{};
  lenders.slots[d * experts + lender.spare_slot] = nullptr;
  lenders.layer[d].slots = lender.slots - 1;
  lenders.layer[d].spare_at = nullptr;  // until its next call
  lenders.slots[int64_t{lenders.mine} * experts + hole] = lender.spare_at;
}

/// Offers the thread's slot to other layers. Called by the thread of the resident expert that is
/// worth least.
__device__ __forceinline__ void OfferSpare(ServedLayer* layer, double worth, int slot,
                                           uint8_t* at) {
  layer->spare_at = at;
  layer->spare_worth = static_cast<float>(worth);
  layer->spare_expert = static_cast<int32_t>(threadIdx.x);
  layer->spare_slot = slot;
}

/// Takes a slot of another layer, if the call gains by it. The slot becomes the last of the call's
/// places, and is counted. Called by all threads.
__device__ __forceinline__ void Borrow(const ServeMissesArgs& args, const Known& known,
                                       const Standing& mine, double worth, int miss_rank,
                                       int victim_rank, Lending& lending, uint8_t** slots,
                                       int32_t* places, ServedCounts* call) {
  if (SaysGain(*call, mine.miss, mine.idle, miss_rank, victim_rank)) lending.gain = worth;
  __syncthreads();
  const uint64_t lender = LeastOf(lending.lenders);
  const int hole = lending.hole;
  if (hole == args.experts || !Borrows(lender, lending.gain)) return;
  ++call->borrowed;
  if (known.lends == lender) {
    slots[hole] = known.other.spare_at;
    places[call->copies() - 1] = hole;
    TakeSlot(args.lenders, known.other, args.experts, hole);
  }
  __syncthreads();
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_LEND_SLOTS_CUH_
