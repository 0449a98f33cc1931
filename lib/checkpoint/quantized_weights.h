// Weights that a checkpoint stores quantized, read as the codes and scales of a record without
// rounding. docs/reference/checkpoints.md names the tensors of each form.
#ifndef MOERT_LIB_CHECKPOINT_QUANTIZED_WEIGHTS_H_
#define MOERT_LIB_CHECKPOINT_QUANTIZED_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/stored_codes.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/quantization_config.h"
#include "moert/scheme.h"
#include "quant/quantized_matrix.h"

namespace moert {

/// The name of a linear layer without the suffix of its weight: "...up_proj" of
/// "...up_proj.weight".
std::string WeightBase(const std::string& weight);

/// A matrix [rows, k] of a checkpoint. In tensors of all experts, it consists of the rows
/// first_row, first_row + row_step, ... of expert `expert`.
struct StoredMatrix {
  std::string base;  // its tensors' names without ".weight", ".qweight", "_blocks", ...
  int64_t rows = 0;
  int64_t k = 0;
  // Mxfp4Blocks only.
  int64_t experts = 0, expert = 0;
  int64_t stored_rows = 0, first_row = 0, row_step = 1;
};

/// The orders in which the channels of int4 groups may be stored.
enum class ChannelOrder {
  kRecord,  // one group behind the other
  kAny,     // act-order
};

/// The groups of a stored row; the channels of a group share a scale.
struct StoredGroups {
  int64_t channels = -1;       // of a group; -1: all of a row
  int64_t count = 1;           // of a row
  std::vector<int32_t> order;  // by channel: its group; empty: they lie in order
  /// For each group of a matrix, the stored group that it is a part of.
  std::vector<int64_t> Of(const QuantizedMatrix& q) const;
};

/// Thread-safe. Borrows the checkpoint.
class QuantizedWeights {
 public:
  QuantizedWeights(const Checkpoint* checkpoint, const QuantizationConfig& config)
      : checkpoint_(checkpoint), config_(config) {}

  /// The form in which the file has `base`: a linear layer may be unquantized, or fp8 in a file of
  /// another form.
  StoredWeights FormOf(const std::string& base) const;
  bool Has(const std::string& base) const { return FormOf(base) != StoredWeights::kPlain; }
  /// The scheme whose records hold the matrix unchanged, bf16 for floats. Checks types and shapes
  /// of quantized tensors; errors name the tensor.
  absl::StatusOr<Scheme> SchemeOf(const StoredMatrix& matrix) const;
  /// The names of all tensors that Read may read, including those that a file may lack.
  std::vector<std::string> TensorsOf(const std::string& base) const;
  /// Reads codes, scales and zeros in a layout of that scheme. Errors name the tensor: codes that
  /// are no numbers, zero points where the configuration has none, reordered channels. With kAny
  /// the latter are no error: groups have one channel each then, which no record can hold.
  absl::StatusOr<QuantizedMatrix> Read(const StoredMatrix& matrix,
                                       ChannelOrder order = ChannelOrder::kRecord) const;
  /// The parts of Read: everything but the codes, and the codes.
  absl::StatusOr<QuantizedMatrix> ReadGroups(const StoredMatrix& matrix, ChannelOrder order) const;
  absl::Status ReadCodes(const StoredMatrix& matrix, TakeTile take,
                         const MatrixPart& part = {}) const;
  /// The error that Read gives for reordered channels.
  absl::Status CheckOrder(const StoredMatrix& matrix) const;

 private:
  struct Form;
  static const Form& Of(StoredWeights form);
  absl::StatusOr<const TensorInfo*> Tensor(const std::string& name,
                                           std::initializer_list<DType> types,
                                           const std::vector<int64_t>& shape) const;
  absl::Status Error(const TensorInfo& tensor, const std::string& what) const;
  absl::Status OutOfMemory(const StoredMatrix& m) const;
  template <typename T>
  absl::StatusOr<std::vector<T>> Whole(const TensorInfo& tensor) const {
    std::vector<T> values(static_cast<size_t>(tensor.bytes) / sizeof(T));
    absl::Status status = checkpoint_->ReadBytes(
        tensor, 0, {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T)});
    if (!status.ok()) return status;
    return values;
  }
  absl::Status ReadScales(const TensorInfo& tensor, bool by_group, const StoredGroups& groups,
                          QuantizedMatrix* q) const;
  static StoredGroups GroupsOf(int64_t channels, int64_t k);
  /// The tensor with each channel's group; null: channels are in order.
  absl::StatusOr<const TensorInfo*> OrderTensor(const StoredMatrix& m) const;
  /// The groups of an int4 matrix; if channels are reordered, `q` gets groups of one channel.
  absl::StatusOr<StoredGroups> ReadOrder(const StoredMatrix& m, ChannelOrder order,
                                         QuantizedMatrix* q) const;
  absl::Status CheckZeros(const StoredMatrix& m, const TensorInfo& tensor,
                          QuantizedMatrix* q) const;

  absl::StatusOr<Scheme> Int4Scheme(const StoredMatrix& m, const TensorInfo& scales) const;
  absl::StatusOr<Scheme> PlainScheme(const StoredMatrix&) const { return Scheme{}; }
  absl::StatusOr<Scheme> GptqScheme(const StoredMatrix& m) const;
  absl::StatusOr<Scheme> PackedScheme(const StoredMatrix& m) const;
  absl::StatusOr<Scheme> Int8Scheme(const StoredMatrix& m) const;
  absl::StatusOr<Scheme> Nvfp4Scheme(const StoredMatrix& m) const;
  absl::StatusOr<Scheme> Mxfp4Scheme(const StoredMatrix& m) const;
  absl::StatusOr<Scheme> Mxfp4RowsScheme(const StoredMatrix& m) const;
  absl::StatusOr<Scheme> Fp8Scheme(const StoredMatrix& m) const;
  absl::Status PlainGroups(const StoredMatrix&, ChannelOrder, QuantizedMatrix*) const {
    return absl::InternalError("plain weights have no codes");
  }
  absl::Status GptqGroups(const StoredMatrix& m, ChannelOrder order, QuantizedMatrix* q) const;
  absl::Status PackedGroups(const StoredMatrix& m, ChannelOrder order, QuantizedMatrix* q) const;
  absl::Status Int8Groups(const StoredMatrix& m, ChannelOrder, QuantizedMatrix* q) const;
  absl::Status Nvfp4Groups(const StoredMatrix& m, ChannelOrder, QuantizedMatrix* q) const;
  absl::Status Mxfp4Groups(const StoredMatrix& m, ChannelOrder, QuantizedMatrix* q) const;
  absl::Status Mxfp4RowsGroups(const StoredMatrix& m, ChannelOrder, QuantizedMatrix* q) const;
  /// Stores scales of rows first_row, first_row + row_step, ... from exponents.
  absl::Status PutExponents(const StoredMatrix& m, const TensorInfo& tensor,
                            const std::vector<uint8_t>& exponents, QuantizedMatrix* q) const;
  absl::Status Fp8Groups(const StoredMatrix& m, ChannelOrder, QuantizedMatrix* q) const;

  const Checkpoint* const checkpoint_;
  const QuantizationConfig config_;
};

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_QUANTIZED_WEIGHTS_H_
