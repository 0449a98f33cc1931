// A format's matrix inside a record, as products read it.
#ifndef MOERT_KERNELS_CUDA_FEW_TILE_MATRIX_CUH_
#define MOERT_KERNELS_CUDA_FEW_TILE_MATRIX_CUH_

#include "kernels/cuda/device_types.h"

namespace moert::cuda {

/// `up`: the matrix of the second row blocks, if it is another.
__device__ __forceinline__ TileMatrix ResolveMatrix(const uint8_t* record, const DeviceMatrix& m,
                                                    const DeviceMatrix* up) {
  TileMatrix t;
  t.weights = record + m.weight_offset;
  t.scales = record + m.scale_offset;
  t.second_weights = up != nullptr ? static_cast<int>(up->weight_offset - m.weight_offset)
                                   : m.k64s * K64Bytes(m.packing);
  t.second_scales = up != nullptr ? static_cast<int>(up->scale_offset - m.scale_offset)
                                  : BlockScaleBytes(m.packing);
  t.zero_distance = static_cast<int>(m.zero_offset - m.scale_offset);
  t.items = up != nullptr ? m.row_blocks : (m.row_blocks + 1) / 2;
  t.row_blocks = m.row_blocks;
  t.k64s = m.k64s;
  t.group_k16s = m.group_k16s;
  t.zero_point = m.zero_point;
  t.packing = m.packing;
  t.operand = m.operand;
  t.k = m.k;
  t.bias = m.bias_offset == 0 ? 0 : static_cast<int>(m.bias_offset - m.weight_offset);
  return t;
}

/// The biases of gate or of down; null: none.
__device__ __forceinline__ const float* BiasesOf(const TileMatrix& m) {
  return m.bias == 0 ? nullptr : reinterpret_cast<const float*>(m.weights + m.bias);
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_FEW_TILE_MATRIX_CUH_
