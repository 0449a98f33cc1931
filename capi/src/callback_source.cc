#include "callback_source.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/bf16.h"
#include "base/status_macros.h"
#include "guard.h"
#include "moert/tensor.h"
#include "quant/packing.h"

namespace moert::capi {
namespace {

// Rows of a matrix are asked for in pieces of about this size: few calls, little scratch.
constexpr int64_t kPieceBytes = 256 << 10;

struct Version {
  std::string name;
  Scheme scheme;
  std::vector<RecordLayout> layouts;  // of each layer
};

class CallbackSource final : public ExpertSource {
 public:
  CallbackSource(std::string name, MoeModelSpec model, const moert_source_callbacks& callbacks,
                 bool records, std::vector<Version> versions)
      : name_(std::move(name)),
        model_(std::move(model)),
        callbacks_(callbacks),
        dtype_(static_cast<DType>(callbacks.weights_dtype)),
        records_(records),
        versions_(std::move(versions)) {
    callbacks_.schemes = nullptr;  // not ours
    for (const MoeLayerSpec& layer : model_.layers) {
      const int64_t width = std::max({layer.hidden, layer.intermediate, layer.shared_intermediate});
      widest_row_ = std::max(widest_row_, width);
    }
  }
  ~CallbackSource() override {
    if (callbacks_.destroy != nullptr) callbacks_.destroy(callbacks_.user_data);
  }

  const MoeModelSpec& model() const override { return model_; }
  const std::string& name() const override { return name_; }
  int num_versions() const override { return static_cast<int>(versions_.size()); }
  absl::string_view version_name(int version) const override { return versions_[version].name; }
  const RecordLayout& layout(int layer, int, int version) const override {
    return versions_[version].layouts[layer];
  }

  int64_t scratch_bytes() const override {
    if (records_) return 0;
    // What the host fills, and the same as fp32 if it fills f16.
    return PieceRows(widest_row_) * widest_row_ * (dtype_ == DType::kF16 ? 6 : DTypeBytes(dtype_));
  }

  absl::Status ReadRecord(int layer, int expert, int version,
                          absl::Span<std::byte> dst) const override {
    const RecordLayout& record = layout(layer, expert, version);
    if (!records_) return ReadMatrices(layer, expert, record, dst.data());
    moert_read read = Request(layer, expert, MOERT_PART_RECORD, MOERT_U8);
    read.version = version;
    return Read(read, 1, record.bytes, dst.data());
  }

  absl::StatusOr<LayerConstants> ReadConstants(int layer) const override {
    const MoeLayerSpec& spec = model_.layers[layer];
    LayerConstants constants;
    const auto floats = [&](moert_part part, int64_t rows, int64_t cols, std::vector<float>* out) {
      out->resize(rows * cols);
      return Read(Request(layer, 0, part, MOERT_F32), rows, cols, out->data());
    };
    MOERT_RETURN_IF_ERROR(
        floats(MOERT_PART_ROUTER, spec.num_experts, spec.hidden, &constants.gate));
    if (spec.routing.selection_bias) {
      MOERT_RETURN_IF_ERROR(
          floats(MOERT_PART_SELECTION_BIAS, 1, spec.num_experts, &constants.selection_bias));
    }
    if (spec.shared_gate) {
      MOERT_RETURN_IF_ERROR(floats(MOERT_PART_SHARED_GATE, 1, spec.hidden, &constants.shared_gate));
    }
    if (spec.shared_intermediate > 0) {
      MOERT_ASSIGN_OR_RETURN(
          constants.shared_layout,
          MakeRecordLayout(spec.hidden, spec.shared_intermediate, ExpertFormat::Uniform(Scheme{})));
      constants.shared_expert.resize(constants.shared_layout.bytes);
      MOERT_RETURN_IF_ERROR(ReadMatrices(layer, MOERT_SHARED_EXPERT, constants.shared_layout,
                                         constants.shared_expert.data()));
    }
    return constants;
  }

 private:
  static moert_read Request(int layer, int expert, moert_part part, moert_dtype dtype) {
    moert_read read{};
    read.struct_size = sizeof(read);
    read.layer = layer;
    read.expert = expert;
    read.part = part;
    read.dtype = dtype;
    return read;
  }

  int64_t PieceRows(int64_t cols) const {
    return std::max<int64_t>(1, kPieceBytes / (cols * DTypeBytes(dtype_) * kRowTile)) * kRowTile;
  }

  absl::Status Read(moert_read read, int64_t rows, int64_t cols, void* dst) const {
    read.rows = rows;
    read.cols = cols;
    read.dst = dst;
    read.dst_bytes = rows * cols * DTypeBytes(static_cast<DType>(read.dtype));
    moert_failure failure;
    moert_code code = MOERT_OK;
    try {
      code = callbacks_.read(callbacks_.user_data, &read, &failure);
    } catch (...) {  // a C++ host's; the contract forbids it, dying for it helps nobody
      code = MOERT_INTERNAL;
      failure.message = "the read callback threw an exception";
    }
    if (code == MOERT_OK) return absl::OkStatus();
    return FromCallback(
        code, failure,
        absl::StrCat(name_, " layer ", read.layer, " expert ", read.expert, " part ", read.part));
  }

  absl::Status ReadMatrices(int layer, int expert, const RecordLayout& layout,
                            std::byte* record) const {
    std::memset(record, 0, static_cast<size_t>(layout.bytes));  // what lies between the sections
    const std::pair<moert_part, const MatrixLayout*> parts[] = {
        {MOERT_PART_GATE_PROJ, &layout.gate},
        {MOERT_PART_UP_PROJ, &layout.up},
        {MOERT_PART_DOWN_PROJ, &layout.down}};
    std::vector<std::byte> piece;
    std::vector<float> widened;
    for (const auto& [part, matrix] : parts) {
      const int64_t step = PieceRows(matrix->k);
      for (int64_t row = 0; row < matrix->rows; row += step) {
        const int64_t rows = std::min(step, matrix->rows - row);
        piece.resize(rows * matrix->k * DTypeBytes(dtype_));
        moert_read read = Request(layer, expert, part, callbacks_.weights_dtype);
        read.first_row = row;
        MOERT_RETURN_IF_ERROR(Read(read, rows, matrix->k, piece.data()));
        MOERT_RETURN_IF_ERROR(Pack(*matrix, row, rows, piece.data(), &widened, record));
      }
    }
    return absl::OkStatus();
  }

  /// Rows [row, row + rows) of a matrix: row blocks follow each other in a record, so that a piece
  /// is a matrix of its own that begins further in.
  absl::Status Pack(const MatrixLayout& matrix, int64_t row, int64_t rows, const std::byte* piece,
                    std::vector<float>* widened, std::byte* record) const {
    MatrixLayout part = matrix;
    part.rows = rows;
    part.padded_rows = (rows + kRowTile - 1) / kRowTile * kRowTile;
    part.weight_offset += row * matrix.padded_k * 2;
    part.weight_bytes = part.padded_rows * matrix.padded_k * 2;
    const size_t count = static_cast<size_t>(rows * matrix.k);
    switch (dtype_) {
      case DType::kBF16:
        return PackMatrixBf16(
            part, absl::MakeConstSpan(reinterpret_cast<const uint16_t*>(piece), count), record);
      case DType::kF32:
        return PackMatrixBf16(
            part, absl::MakeConstSpan(reinterpret_cast<const float*>(piece), count), record);
      default: {
        widened->resize(count);
        const auto* half = reinterpret_cast<const uint16_t*>(piece);
        for (size_t i = 0; i < count; ++i) (*widened)[i] = F16ToF32(half[i]);
        return PackMatrixBf16(part, absl::MakeConstSpan(*widened), record);
      }
    }
  }

  const std::string name_;
  const MoeModelSpec model_;
  moert_source_callbacks callbacks_;
  const DType dtype_;
  const bool records_;
  const std::vector<Version> versions_;
  int64_t widest_row_ = 0;
};

absl::StatusOr<Version> MakeVersion(absl::string_view scheme_name, const MoeModelSpec& model) {
  Version version;
  version.name = std::string(scheme_name);
  MOERT_ASSIGN_OR_RETURN(version.scheme, Scheme::Parse(scheme_name));
  for (const MoeLayerSpec& layer : model.layers) {
    MOERT_ASSIGN_OR_RETURN(
        RecordLayout layout,
        MakeRecordLayout(layer.hidden, layer.intermediate, ExpertFormat::Uniform(version.scheme)));
    version.layouts.push_back(layout);
  }
  return version;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ExpertSource>> MakeCallbackSource(
    std::string name, MoeModelSpec model, const moert_source_callbacks& callbacks) {
  if (callbacks.read == nullptr)
    return absl::InvalidArgumentError("callbacks.read: must not be NULL");
  if (callbacks.reserved0 != 0) return absl::InvalidArgumentError("callbacks.reserved0: must be 0");
  const bool records = callbacks.schemes != nullptr;
  if (callbacks.weights_dtype != MOERT_F32 && callbacks.weights_dtype != MOERT_BF16 &&
      callbacks.weights_dtype != MOERT_F16) {
    return absl::InvalidArgumentError(
        absl::StrCat("callbacks.weights_dtype is ", callbacks.weights_dtype,
                     ", legal is MOERT_F32, MOERT_BF16 or MOERT_F16"));
  }
  std::vector<Version> versions;
  for (const absl::string_view scheme : absl::StrSplit(records ? callbacks.schemes : "bf16", ',')) {
    MOERT_ASSIGN_OR_RETURN(Version version, MakeVersion(scheme, model));
    if (!versions.empty() && version.layouts[0].bytes > versions.back().layouts[0].bytes) {
      return absl::InvalidArgumentError(absl::StrCat("callbacks.schemes: ", version.name,
                                                     " is larger than ", versions.back().name,
                                                     " before it; the most bits come first"));
    }
    versions.push_back(std::move(version));
  }
  // One allocation, before the callbacks have an owner: what fails here never calls destroy.
  return std::shared_ptr<const ExpertSource>(std::make_shared<CallbackSource>(
      std::move(name), std::move(model), callbacks, records, std::move(versions)));
}

}  // namespace moert::capi
