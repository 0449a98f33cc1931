// The table in which a host's kernels find experts: the slot of each expert of a layer, in device
// memory.
#ifndef MOERT_KERNELS_CUDA_CACHE_SLOT_TABLE_H_
#define MOERT_KERNELS_CUDA_CACHE_SLOT_TABLE_H_

#include <cstdint>

struct CUstream_st;

namespace moert::cuda {

/// Stores slots in a table, in stream order.
struct SlotUpdates {
  static constexpr int kMax = 256;
  int32_t count = 0;
  int32_t index[kMax];
  int32_t slot[kMax];
};
int LaunchUpdateSlots(int32_t* table, const SlotUpdates& updates, CUstream_st* stream);

/// A host's request, in device memory: [pairs] each.
struct FindSlotsArgs {
  const int32_t* ids = nullptr;    // one that is not in [0, experts) is taken for -1: none
  const float* weights = nullptr;  // or null: each weighs even_weight
  const int32_t* table = nullptr;  // [experts]
  int32_t* own_ids = nullptr;      // or null; receives ids that have a slot, others as -1
  float* own_weights = nullptr;    // or null; receives weights
  int32_t* slots = nullptr;        // or null; receives slots, -1 where there is none
  int32_t pairs = 0;
  int32_t experts = 0;
  float even_weight = 0;
};
int LaunchFindSlots(const FindSlotsArgs& args, CUstream_st* stream);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_SLOT_TABLE_H_
