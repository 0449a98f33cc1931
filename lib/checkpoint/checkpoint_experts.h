// The experts and layer constants of an HF checkpoint, by layer and expert instead of by name.
#ifndef MOERT_LIB_CHECKPOINT_CHECKPOINT_EXPERTS_H_
#define MOERT_LIB_CHECKPOINT_CHECKPOINT_EXPERTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/quantized_weights.h"
#include "checkpoint/tensor_claims.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/source/expert_source.h"

namespace moert {

/// One expert's matrices as bf16 bits, row-major: gate and up [intermediate, hidden], down [hidden,
/// intermediate]. `gate` is empty for experts without one.
struct ExpertWeights {
  std::vector<uint16_t> gate, up, down;
};

/// The matrix that a projection names.
template <typename T>
T& OfProjection(Projection p, T& gate, T& up, T& down) {
  return p == Projection::kGate ? gate : p == Projection::kUp ? up : down;
}

/// The tensors that hold the experts of one layer: one tensor per matrix of an expert, or all
/// experts of a layer in one tensor, gate and up fused or separate, in product order or transposed.
struct ExpertTensors {
  bool fused = false;
  const TensorInfo* gate_up = nullptr;  // [E, 2 intermediate, hidden], gate's rows first; or null
  const TensorInfo* gate = nullptr;     // [E, intermediate, hidden]; or null
  const TensorInfo* up = nullptr;       // [E, intermediate, hidden]; or null
  const TensorInfo* down = nullptr;     // [E, hidden, intermediate]
  bool transposed = false;              // the last two dimensions of gate and up are swapped
  bool down_transposed = false;         // those of down
  bool blocks = false;                  // mxfp4, and all of the above null
};

/// Thread-safe. Borrows both arguments of Create.
class CheckpointExperts {
 public:
  /// Fails at once, naming the tensor, if a tensor that the model needs is missing, has another
  /// shape or is not floating point, or if an MoE block has a tensor that nothing reads.
  static absl::StatusOr<std::unique_ptr<CheckpointExperts>> Create(const Checkpoint* checkpoint,
                                                                   const HfConfig* config);

  /// The names of the tensors in the file.
  const MoeTensorNames& names() const { return names_; }
  const MoeModelSpec& model() const { return config_->moe; }
  /// The tensors that are read: experts, shared experts, routers.
  const TensorClaims& claims() const { return claims_; }
  /// The schemes in which the file stores an expert, so that a record holds it unchanged. bf16 for
  /// floats of any kind.
  const ExpertFormat& stored(int layer, int expert) const {
    const std::vector<ExpertFormat>& formats = stored_[layer];
    return formats[formats.size() == 1 ? 0 : static_cast<size_t>(expert)];
  }
  /// Whether records can hold the file's experts unchanged: InvalidArgument if channels are
  /// reordered, judged by the first expert of each layer.
  absl::Status CheckRecords() const;
  /// `layer` counts MoE layers. Weights that are not bf16 are rounded to nearest even.
  absl::Status ReadExpert(int layer, int expert, ExpertWeights* out) const;
  /// Reads one matrix, widened without rounding. Row-major.
  absl::Status ReadWidened(int layer, int expert, Projection p, std::vector<float>* out) const;
  /// Reads a whole record, biases included, in the file's own format or in bf16; `layout` is that
  /// of one of these two. InvalidArgument if a scale has more bits than the record's, or channels
  /// are in another order.
  absl::Status ReadRecord(int layer, int expert, const RecordLayout& layout,
                          std::byte* record) const;
  /// The same in pieces, which write disjoint bytes: in any order, by several threads.
  int64_t num_pieces(int layer, int expert, const RecordLayout& layout) const;
  absl::Status ReadPiece(int layer, int expert, const RecordLayout& layout, int64_t piece,
                         std::byte* record) const;
  /// The most scratch memory that reading one of a layer's records takes, bytes.
  int64_t scratch_bytes(int layer, bool widen) const;
  /// Reads only the biases.
  absl::Status ReadBiases(int layer, int expert, const RecordLayout& layout,
                          std::byte* record) const;
  /// The shared expert as a bf16 record.
  absl::StatusOr<LayerConstants> ReadConstants(int layer) const;

 private:
  CheckpointExperts(const Checkpoint* checkpoint, const HfConfig* config)
      : checkpoint_(checkpoint),
        config_(config),
        quantized_(checkpoint, config->quantization),
        claims_(checkpoint) {}
  absl::Status Check(const std::string& name, absl::Span<const int64_t> shape, const char* part);
  absl::StatusOr<Scheme> CheckQuantized(const StoredMatrix& matrix, const char* part);
  absl::Status CheckShared(const MoeLayerSpec& layer);
  /// Checks that a layer's MoE block has no tensors that nothing reads.
  absl::Status CheckAllRead() const;
  absl::Status CheckLayer(const MoeLayerSpec& layer);
  std::vector<int64_t> BiasShape(const MoeLayerSpec& layer) const;
  absl::Status CheckExperts(const MoeLayerSpec& layer);
  absl::StatusOr<ExpertFormat> CheckExpert(const MoeLayerSpec& layer, int expert, bool blocks);
  absl::Status CheckBiases(const MoeLayerSpec& layer);
  /// The place of an expert's quantized matrix.
  StoredMatrix Stored(const MoeLayerSpec& layer, int expert, Projection p, bool blocks) const;
  absl::Status CheckContents(int layer, const RecordLayout& layout) const;
  absl::Status CheckLayout(int layer, int expert, const RecordLayout& layout) const;
  /// Reads the section of one bias.
  absl::Status ReadBias(const MoeLayerSpec& layer, int expert, Projection p,
                        const MatrixLayout& matrix, std::byte* record) const;
  absl::StatusOr<ExpertTensors> FindFused(const MoeLayerSpec& layer) const;
  absl::Status CheckFused(const MoeLayerSpec& layer, ExpertTensors* found) const;
  absl::Status ReadShared(const MoeLayerSpec& layer, ExpertWeights* out) const;
  absl::Status ReadMatrix(const std::string& name, int64_t rows, int64_t k,
                          std::vector<uint16_t>* out) const;
  /// The place of a matrix in a tensor of floats, by rows or by channels: its beginning, and the
  /// distances of rows and channels in elements.
  struct StoredFloats {
    const TensorInfo* tensor = nullptr;
    int64_t first = 0, row_step = 0, k_step = 1;
    bool by_channel = false;
  };
  absl::StatusOr<StoredFloats> FloatsOf(int layer, int expert, Projection p) const;
  /// Reads rows from `first` on as contiguous bf16. rows: [count, row_step].
  absl::Status ReadRows(const StoredFloats& from, int64_t first, int64_t count, int64_t k,
                        uint16_t* rows) const;
  /// Reads channels from `first` on, with the weights of the rows before them. lines: [count,
  /// k_step].
  absl::Status ReadChannels(const StoredFloats& from, int64_t first, int64_t count, int64_t rows,
                            uint16_t* lines) const;
  /// Reads a whole matrix row by row.
  absl::Status ReadFloats(const StoredFloats& from, int64_t rows, int64_t k,
                          std::vector<uint16_t>* out) const;
  /// Reads one matrix of an expert as bf16, row by row. Empty: the expert has no such matrix.
  absl::Status ReadProjection(int layer, int expert, Projection p,
                              std::vector<uint16_t>* out) const;
  /// Packs a part of a matrix as bf16, some rows or channels at a time.
  absl::Status PackRows(const StoredFloats& from, const MatrixLayout& layout,
                        const MatrixPart& part, std::byte* record) const;
  absl::Status PackChannels(const StoredFloats& from, const MatrixLayout& layout,
                            const MatrixPart& part, std::byte* record) const;
  absl::Status NamedError(const absl::Status& status, const StoredMatrix& m) const;
  /// Whether the file has the matrix quantized while the record has it in bf16.
  bool Widens(int layer, int expert, Projection p, const MatrixLayout& matrix) const;
  /// Reads a part of the weights of one matrix of a record.
  absl::Status ReadWeights(int layer, int expert, Projection p, const MatrixLayout& matrix,
                           const MatrixPart& part, std::byte* record) const;
  /// Reads everything else that a record has of a matrix: scales, biases, and zeros between
  /// sections.
  absl::Status ReadOthers(int layer, int expert, Projection p, const MatrixLayout& matrix,
                          std::byte* record) const;

  const Checkpoint* const checkpoint_;
  const HfConfig* const config_;
  MoeTensorNames names_;
  const QuantizedWeights quantized_;
  TensorClaims claims_;
  std::vector<ExpertTensors> tensors_;             // by MoE layer
  std::vector<std::vector<ExpertFormat>> stored_;  // by MoE layer: one, or one an expert
};

/// Packs one expert as a bf16 record at `record`, which holds layout.bytes; gaps and biases are
/// zeroed.
absl::Status PackExpertBf16(const RecordLayout& layout, const ExpertWeights& weights,
                            std::byte* record);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_CHECKPOINT_EXPERTS_H_
