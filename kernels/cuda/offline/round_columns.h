// GPTQ on a device (lib/offline/gptq.h): rounds some columns of a matrix under known scales, and
// spreads the errors of each column over the columns behind it.
#ifndef MOERT_KERNELS_CUDA_OFFLINE_ROUND_COLUMNS_H_
#define MOERT_KERNELS_CUDA_OFFLINE_ROUND_COLUMNS_H_

#include <cstdint>

#include "kernels/cuda/offline/gptq_math.h"

struct CUstream_st;

namespace moert::cuda {

/// Columns of a block that a CTA holds in shared memory.
constexpr int kMostBlockColumns = 128;

/// Describes a block, the columns `begin`..`begin + width` of the matrix, and the columns of it
/// that are rounded: `count` of them from `first` on. Everything is in device memory, row-major.
struct ColumnRounding {
  const float* original;  // [rows, k]
  float* weights;         // [rows, k] current values; the block's later columns change
  const float* shares;    // [k, k] of GptqFactor
  const Fit* fits;        // [rows]
  float* errors;          // [rows, width] of the block
  uint8_t* codes;         // [rows, k], or null
  float* back;            // [rows, k] values of the codes, or null
  int64_t rows, k;
  int64_t begin;
  int width, first, count;
};

/// A cudaError_t. Sums are those of the CPU's vectors (lib/offline/dense_lanes.h) to the bit.
int LaunchRoundColumns(const ColumnRounding& rounding, const RoundingForm& form,
                       CUstream_st* stream);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_OFFLINE_ROUND_COLUMNS_H_
