// The search for the scales of a matrix's groups on a device.
#ifndef MOERT_KERNELS_CUDA_OFFLINE_FIT_GROUPS_H_
#define MOERT_KERNELS_CUDA_OFFLINE_FIT_GROUPS_H_

#include <cstdint>

#include "kernels/cuda/offline/hqq_math.h"
#include "kernels/cuda/offline/rtn_math.h"

struct CUstream_st;

namespace moert::cuda {

/// A row-major matrix and its groups along the rows; the last group of a row may be smaller.
struct FitMatrix {
  const float* values;
  int64_t rows, k;
  int group;
  int64_t stride;  // of rows, in elements

  MOERT_FIT_FUNCTION int groups() const { return static_cast<int>((k + group - 1) / group); }
};

/// A CTA holds the values of a group in shared memory.
constexpr int kMostGroupValues = 8192;

/// fits: [rows][groups], in device memory. Groups of more than kMostGroupValues are refused. Both
/// return a cudaError_t.
int LaunchFitRtn(const FitMatrix& matrix, const RangeForm& form, Fit* fits, CUstream_st* stream);
int LaunchFitHqq(const FitMatrix& matrix, const HqqForm& form, Fit* fits, CUstream_st* stream);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_OFFLINE_FIT_GROUPS_H_
