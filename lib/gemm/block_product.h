// Arguments of a block kernel: the addresses of a matrix's row blocks in a record, the sizes of its
// scale groups, and the choice of a kernel by the number of columns.
#ifndef MOERT_LIB_GEMM_BLOCK_PRODUCT_H_
#define MOERT_LIB_GEMM_BLOCK_PRODUCT_H_

#include <algorithm>
#include <cstdint>

#include "base/checked_math.h"
#include "kernels/cpu/kernel_set.h"
#include "moert/mixed_group_gemm.h"

namespace moert::gemm {

using kernels::BlockGemmArgs;
using kernels::BlockGemmFn;
using kernels::kBlockRows;
using kernels::kMaxColumns;
using kernels::kNarrowColumns;
using kernels::kPieceK;
using kernels::OperandKernels;
using kernels::OperandKind;

// From longer groups float kernels take this many tiles at a time, so that these stay in the L1
// cache for all columns.
constexpr int64_t kFloatFlushTiles = 8;

inline int64_t BlockBytes(const MatrixLayout& matrix) {
  return matrix.padded_k * kBlockRows * matrix.scheme.weight_bits / 8;
}

// Points `args` at row block `block` of a matrix, as its `i`th.
inline void PointAt(const ExpertProblem& problem, const MatrixLayout& matrix, int64_t block, int i,
                    BlockGemmArgs* args) {
  const auto* record = reinterpret_cast<const uint8_t*>(problem.record);
  args->weights[i] = record + matrix.weight_offset + block * BlockBytes(matrix);
  if (matrix.scheme.is_bf16()) return;
  if (matrix.scheme.imported()) {
    args->raw_scales[i] =
        record + matrix.scale_offset + block * kBlockRows * ScaleBytes(matrix.scheme.scales);
    args->zeros[i] =
        matrix.scheme.symmetric ? nullptr : record + matrix.zero_offset() + block * kBlockRows;
    args->matrix_scale[i] =
        matrix.scheme.scales == ScaleType::kE4M3
            ? reinterpret_cast<const float*>(record + matrix.matrix_scale_offset())
            : nullptr;
    return;
  }
  const auto* scales = reinterpret_cast<const uint16_t*>(record + matrix.scale_offset);
  args->scales[i] = scales + block * kBlockRows;
  const int64_t groups = CeilDiv(matrix.k, matrix.group);
  args->offsets[i] =
      matrix.scheme.symmetric ? nullptr : scales + groups * matrix.padded_rows + block * kBlockRows;
}

inline void DescribeGroups(const MatrixLayout& matrix, OperandKind kind, BlockGemmArgs* args) {
  args->k16s = matrix.padded_k / kPieceK;
  if (matrix.scheme.is_bf16()) return;
  const int64_t tiles = matrix.padded_k / kKTile;
  args->scale_stride = matrix.padded_rows;
  if (matrix.scheme.imported()) {
    args->scale_form = static_cast<int>(matrix.scheme.scales);
    args->groups = matrix.groups();
    args->group_k16s = matrix.group < matrix.k ? matrix.group / kPieceK : args->k16s;
    return;
  }
  // A group that is not a multiple of a tile is the only group: no group exceeds K (scheme.h).
  args->group_tiles = matrix.group < matrix.k ? matrix.group / kKTile : tiles;
  int64_t most = kernels::kMaxFlushTiles;
  if (kind == OperandKind::kSummed) most = kFloatFlushTiles;
  if (kind == OperandKind::kInt8Group || kind == OperandKind::kInt4Group) {
    most = kernels::kInt8GroupTiles;
  }
  args->flush_tiles = std::min({args->group_tiles, tiles, most});
}

// The biases of the 16 rows of a row block, as the record has them, or null.
inline const float* BiasOf(const ExpertProblem& problem, const MatrixLayout& matrix,
                           int64_t block) {
  if (matrix.bias_offset == 0) return nullptr;
  return reinterpret_cast<const float*>(problem.record + matrix.bias_offset) + block * kBlockRows;
}
inline void AddBias(const float* bias, int columns, float* product) {
  for (int i = 0; i < columns * kBlockRows && bias != nullptr; ++i) {
    product[i] += bias[i % kBlockRows];
  }
}

// Results go to rows that are far apart. With many columns there are more such stores than the CPU
// can keep in flight, so the lines are prefetched.
inline void PrefetchForWrite(const float* to) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" ::"m"(*to));  // has no effect on CPUs without the instruction
#else
  __builtin_prefetch(to, 1);
#endif
}

// The kernels of a matrix in a job, and the packed rows of the job's columns.
struct Product {
  BlockGemmFn gemm;
  int64_t most;          // the most columns of a call
  const uint8_t* first;  // row of the job's first column; null: the rows are not evenly spaced
  int64_t stride;
  int64_t kept_bytes;  // for 64 channels of a row block kept as tiles; 0: the kernel keeps none
};

inline Product ProductOf(const OperandKernels& kernels, kernels::WeightKind weights,
                         int64_t columns) {
  if (kernels.wide[weights] != nullptr && columns >= kernels.wide_from) {
    return {kernels.wide[weights], kMaxColumns, nullptr, 0, kernels.kept_bytes[weights]};
  }
  return {kernels.gemm[weights], kNarrowColumns, nullptr, 0, 0};
}

// If a job's columns take several calls, tells the kernel where to keep the tiles of its row
// blocks, so that weights are converted to tiles only once. `room`: memory of the blocks,
// `block_bytes` apart.
inline void KeepTiles(const Product& product, int64_t columns, uint8_t* room, int64_t block_bytes,
                      BlockGemmArgs* args) {
  if (product.kept_bytes == 0 || columns <= product.most) return;
  for (int b = 0; b < kernels::kMaxBlocks; ++b) args->tiles[b] = room + b * block_bytes;
}

}  // namespace moert::gemm

#endif  // MOERT_LIB_GEMM_BLOCK_PRODUCT_H_
