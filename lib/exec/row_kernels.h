// Operations of a device on rows that its rank exchanges with others.
#ifndef MOERT_LIB_EXEC_ROW_KERNELS_H_
#define MOERT_LIB_EXEC_ROW_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
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

/// The rates of a device, a second.
struct DeviceRates {
  double read_bytes = 0;  // of its memory
  double operations = 0;  // in products of many rows
};
/// By its properties. Unavailable without CUDA.
absl::StatusOr<DeviceRates> RatesOf(int device);

/// Ids on a device of which this rank computes some: those of its experts, of those that several
/// ranks own its share of the tokens.
/// A share of an expert: tokens t with t % of == index. of 0: none.
struct OwnerShare {
  int16_t of = 0;
  int16_t index = 0;

  bool Has(int64_t token) const { return of > 0 && token % of == index; }
};

/// Calls that were enqueued are done before Set, before TakeCounts, and before it goes.
class OwnedIds {
 public:
  virtual ~OwnedIds() = default;
  /// Sets the owners of all layers' experts.
  virtual absl::Status Set(absl::Span<const OwnerShare> shares) = 0;
  /// [rows, top_k] of the layer whose first expert is `first`, in device memory: `ids` with -1 for
  /// what is not this rank's, or out of range. Counts the others. Enqueued; valid until the next
  /// call, and in the same place.
  virtual absl::StatusOr<const int32_t*> Keep(int64_t first, int experts, const int32_t* ids,
                                              int64_t rows, int64_t top_k, void* stream) = 0;
  /// Ids that were kept since the last call, of all layers' experts.
  virtual absl::StatusOr<std::vector<int64_t>> TakeCounts() = 0;
};

/// experts: of all layers; pairs: most ids of a call. Unavailable without CUDA.
absl::StatusOr<std::unique_ptr<OwnedIds>> MakeOwnedIds(int device, int64_t experts, int64_t pairs);

}  // namespace moert

#endif  // MOERT_LIB_EXEC_ROW_KERNELS_H_
