// Packs hidden states into rows of plain bf16.
#ifndef MOERT_KERNELS_CUDA_FEW_PACK_UNIT_CUH_
#define MOERT_KERNELS_CUDA_FEW_PACK_UNIT_CUH_

#include "kernels/cuda/device_types.h"
#include "kernels/cuda/primitives/activation.cuh"
#include "kernels/cuda/primitives/element.cuh"

namespace moert::cuda {

/// Units of a packed row: four channels that lie together in it.
MOERT_HOST_DEVICE constexpr int PackedUnits(int cols) {
  return static_cast<int>(OperandScales(cols) / 8);
}

/// Fills unit i of a row, if there is one. row[channel]: an element.
template <typename Row>
__device__ __forceinline__ void PackUnit(const Row& row, int cols, int i, uint8_t* packed) {
  if (i >= PackedUnits(cols)) return;
  const int base = i / 4 * 16 + (i & 3) * 2;
  const int channel[4] = {base, base + 1, base + 8, base + 9};
  uint16_t v[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    v[j] = channel[j] < cols ? ToBf16(ToFloat(row[channel[j]])) : uint16_t{0};
  }
  *reinterpret_cast<ushort4*>(packed + i * 8) = make_ushort4(v[0], v[1], v[2], v[3]);
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_FEW_PACK_UNIT_CUH_
