// Operations of a device on rows that its rank exchanges with others.
#ifndef MOERT_LIB_EXEC_ROW_KERNELS_H_
#define MOERT_LIB_EXEC_ROW_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/checked_math.h"
#include "moert/tensor.h"

namespace moert {

/// A row on its way to another rank: the row, its ids, its weights.
struct RowRecord {
  RowRecord(int64_t row_bytes, int64_t top_k)
      : ids_at(RoundUp(row_bytes, 16)), bytes(RoundUp(ids_at + 8 * top_k, 128)), top_k(top_k) {}
  int64_t ids_at;  // the weights follow
  int64_t bytes;
  int64_t top_k;
};

/// [ranks][rows, cols].
struct RowParts {
  const void* data = nullptr;
  DType dtype = DType::kF32;  // or bf16
  int ranks = 1;
};

/// Calls are enqueued on the stream. It goes when they are done.
class RowKernels {
 public:
  virtual ~RowKernels() = default;

  /// Memory of the device, as long as this lives. Once.
  virtual absl::StatusOr<std::byte*> Allocate(int64_t bytes) = 0;
  /// ids, weights: [rows, top_k], on the device too.
  virtual absl::Status Pack(const MatrixView& rows, const int32_t* ids, const float* weights,
                            const RowRecord& record, std::byte* records, void* stream) = 0;
  virtual absl::Status TakeRouting(const std::byte* records, const RowRecord& record, int64_t rows,
                                   int32_t* ids, float* weights, void* stream) = 0;
  /// out = the sum of the parts, in fp32, in the order of the ranks.
  virtual absl::Status Add(const RowParts& parts, const MutableMatrixView& out, void* stream) = 0;
};

/// Unavailable without CUDA.
absl::StatusOr<std::unique_ptr<RowKernels>> MakeRowKernels(int device);

}  // namespace moert

#endif  // MOERT_LIB_EXEC_ROW_KERNELS_H_
