#include <cuda_runtime.h>

#include "kernels/cuda/cache/slot_table.h"
#include "kernels/cuda/primitives/launch.cuh"

namespace moert::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void UpdateSlotsKernel(int32_t* table, const __grid_constant__ SlotUpdates updates) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int i = threadIdx.x;
  if (i < updates.count) table[updates.index[i]] = updates.slot[i];
}

__global__ void FindSlotsKernel(const __grid_constant__ FindSlotsArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= args.pairs) return;
  const int32_t id = args.ids[i];
  const int32_t slot = id >= 0 && id < args.experts ? args.table[id] : -1;
  if (args.own_ids != nullptr) args.own_ids[i] = slot >= 0 ? id : -1;
  if (args.own_weights != nullptr) {
    args.own_weights[i] = args.weights != nullptr ? args.weights[i] : args.even_weight;
  }
  if (args.slots != nullptr) args.slots[i] = slot;
}

}  // namespace

int LaunchUpdateSlots(int32_t* table, const SlotUpdates& updates, CUstream_st* stream) {
  return LaunchEarly(UpdateSlotsKernel, 1, SlotUpdates::kMax, 0, stream, table, updates);
}

int LaunchFindSlots(const FindSlotsArgs& args, CUstream_st* stream) {
  return LaunchEarly(FindSlotsKernel, (args.pairs + kThreads - 1) / kThreads, kThreads, 0, stream,
                     args);
}

}  // namespace moert::cuda
