// A CTA has 32 rows, one per lane. Every warp rounds each column, with the same result, and spreads
// its errors over a share of the columns behind it, so one barrier per column is enough.
#include "kernels/cuda/offline/round_columns.h"
#include "kernels/cuda/primitives/launch.cuh"

namespace moert::cuda {
namespace {

constexpr int kRows = 32;
constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;

/// Columns of 32 rows; the rows of a column are adjacent.
using Columns = float[kMostBlockColumns][kRows + 1];

struct Block {
  Columns weights;  // the values of the codes, once a column is rounded
  Columns errors;   // the original weights until then
  uint8_t codes[kMostBlockColumns][kRows];
};

__global__ void __launch_bounds__(kThreads)
    RoundColumnsKernel(const __grid_constant__ ColumnRounding m, RoundingForm form) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ Block block;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first_row = int64_t{blockIdx.x} * kRows;
  const int rows = static_cast<int>(m.rows - first_row < kRows ? m.rows - first_row : kRows);
  const int64_t corner = first_row * m.k + m.begin;
  const int width = m.width - m.first;  // columns from `first` on
  for (int at = threadIdx.x; at < kRows * width; at += kThreads) {
    const int row = at / width, column = m.first + at % width;
    const int64_t from = corner + row * m.k + column;
    block.weights[column][row] = row < rows ? m.weights[from] : 0.0f;
    block.errors[column][row] = row < rows ? m.original[from] : 0.0f;
  }
  const Fit fit = lane < rows ? m.fits[first_row + lane] : Fit{1, 0};
  __syncthreads();
  for (int c = m.first; c < m.first + m.count; ++c) {
    const RoundedWeight rounded = RoundWeight(form, fit, block.weights[c][lane]);
    const float error = block.errors[c][lane] - rounded.back;
    const float* const shares = m.shares + (m.begin + c) * m.k + m.begin;
    for (int j = c + 1 + warp; j < m.width; j += kWarps) {
      block.weights[j][lane] = fmaf(error, shares[j], block.weights[j][lane]);
    }
    __syncthreads();
    if (warp == c % kWarps) {  // no other warp reads this column again
      block.weights[c][lane] = rounded.back;
      block.errors[c][lane] = error;
      block.codes[c][lane] = rounded.code;
    }
  }
  __syncthreads();
  for (int at = threadIdx.x; at < rows * width; at += kThreads) {
    const int row = at / width, column = m.first + at % width;
    const int64_t to = corner + row * m.k + column;
    if (column >= m.first + m.count) {
      m.weights[to] = block.weights[column][row];
      continue;
    }
    m.errors[(first_row + row) * m.width + column] = block.errors[column][row];
    if (m.codes != nullptr) m.codes[to] = block.codes[column][row];
    if (m.back != nullptr) m.back[to] = block.weights[column][row];
  }
}

}  // namespace

int LaunchRoundColumns(const ColumnRounding& m, const RoundingForm& form, CUstream_st* stream) {
  if (m.width > kMostBlockColumns || m.first + m.count > m.width) return cudaErrorInvalidValue;
  const auto ctas = static_cast<unsigned>((m.rows + kRows - 1) / kRows);
  return LaunchEarly(RoundColumnsKernel, dim3(ctas), kThreads, 0, stream, m, form);
}

}  // namespace moert::cuda
