// Device operations on the rows that a rank exchanges with other ranks.
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

/// The rows of all ranks, to be added up: [ranks][rows, cols].
struct RowParts {
  const void* data = nullptr;
  DType dtype = DType::kF32;  // or bf16
  int ranks = 1;
};

/// Calls are enqueued on the stream. They must be done before the object is destroyed.
class RowKernels {
 public:
  virtual ~RowKernels() = default;

  /// Allocates device memory that lives as long as this object. May be called once.
  virtual absl::StatusOr<std::byte*> Allocate(int64_t bytes) = 0;
  /// Writes rows and their routing into records. ids, weights: [rows, top_k], in device memory too.
  virtual absl::Status Pack(const MatrixView& rows, const int32_t* ids, const float* weights,
                            const RowRecord& record, std::byte* records, void* stream) = 0;
  virtual absl::Status TakeRouting(const std::byte* records, const RowRecord& record, int64_t rows,
                                   int32_t* ids, float* weights, void* stream) = 0;
  /// out = the sum of the parts, in fp32, in the order of the ranks.
  virtual absl::Status Add(const RowParts& parts, const MutableMatrixView& out, void* stream) = 0;
};

/// Unavailable without CUDA.
absl::StatusOr<std::unique_ptr<RowKernels>> MakeRowKernels(int device);

/// The rates of a device, per second.
struct DeviceRates {
  double read_bytes = 0;  // from its memory
  double operations = 0;  // in products of many rows
};
/// The rates as computed from the device's properties. Unavailable without CUDA.
absl::StatusOr<DeviceRates> RatesOf(int device);

/// This rank's share of an expert that several ranks may own: tokens t with t % of == index. `of`
/// is 1 if only this rank owns the expert, 0 if it does not own it.
struct OwnerShare {
  int16_t of = 0;
  int16_t index = 0;

  bool Has(int64_t token) const { return of > 0 && token % of == index; }
};

/// Picks, from ids in device memory, those that this rank computes: the ids of its experts, and its
/// share of the tokens for experts that several ranks own. The caller makes sure that enqueued
/// calls are done before Set, before TakeCounts, and before the object is destroyed.
class OwnedIds {
 public:
  virtual ~OwnedIds() = default;
  /// Sets the owners of all layers' experts.
  virtual absl::Status Set(absl::Span<const OwnerShare> shares) = 0;
  /// Returns [rows, top_k] in device memory: `ids` with -1 for those that are not this rank's or
  /// are out of range. Counts the others. `first`: index of the layer's first expert among all
  /// layers. Enqueued; valid until the next call, which returns the same address.
  virtual absl::StatusOr<const int32_t*> Keep(int64_t first, int experts, const int32_t* ids,
                                              int64_t rows, int64_t top_k, void* stream) = 0;
  /// How many ids were kept since the last call, for the experts of all layers.
  virtual absl::StatusOr<std::vector<int64_t>> TakeCounts() = 0;
};

/// experts: the number in all layers; pairs: the most ids of a call. Unavailable without CUDA.
absl::StatusOr<std::unique_ptr<OwnedIds>> MakeOwnedIds(int device, int64_t experts, int64_t pairs);

}  // namespace moert

#endif  // MOERT_LIB_EXEC_ROW_KERNELS_H_
