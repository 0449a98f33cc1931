// A row of x times a weight.
#ifndef MOERT_KERNELS_CUDA_ROUTE_WEIGHTED_ROW_CUH_
#define MOERT_KERNELS_CUDA_ROUTE_WEIGHTED_ROW_CUH_

#include "kernels/cuda/primitives/element.cuh"
#include "kernels/cuda/route/rows.h"

namespace moert::cuda {

template <typename T>
struct WeightedRow {
  const T* at;
  float weight;

  /// Row r in the numbering of RowWeights.
  __device__ __forceinline__ WeightedRow(const T* x, int64_t stride, const RowWeights& w, int r) {
    const bool weighted = r < w.pairs;
    at = x + int64_t{weighted ? r / w.top_k : r - w.pairs} * stride;
    weight = weighted ? w.weights[r] : 1.0f;
  }
  __device__ __forceinline__ float operator[](int channel) const {
    return weight * ToFloat(at[channel]);
  }
};

/// The number of rows in all.
inline unsigned NumRows(const DeviceRows& x, const RowWeights& w) {
  return static_cast<unsigned>(x.rows + w.pairs);
}

/// Operands other than plain bf16: see rows.h, whose LaunchPackRows calls this.
int LaunchPackOperand(const DeviceRows& x, int operand, uint8_t* packed, int64_t stride,
                      CUstream_st* stream, const RowWeights& weights);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_ROUTE_WEIGHTED_ROW_CUH_
