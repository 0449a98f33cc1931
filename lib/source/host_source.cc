#include "moert/source/host_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bf16.h"
#include "base/enum_name.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "quant/packing.h"

namespace moert {
namespace {

// Rows of a matrix are asked for in pieces of about this size: few calls, little scratch.
constexpr int64_t kPieceBytes = 256 << 10;

absl::string_view PartName(WeightPart part) {
  constexpr absl::string_view kNames[] = {"gate_proj",      "up_proj",
                                          "down_proj",      "router",
                                          "selection bias", "shared expert's gate",
                                          "record",         "logit bias",
                                          "expert scales",  "experts by token id",
                                          "gate bias",      "up bias",
                                          "down bias"};
  return EnumName(kNames, part);
}

struct Version {
  std::string name;
  std::vector<RecordLayout> layouts;  // of each layer
};

absl::StatusOr<Version> MakeVersion(absl::string_view scheme_name, const MoeModelSpec& model) {
  Version version;
  version.name = std::string(scheme_name);
  MOERT_ASSIGN_OR_RETURN(const Scheme scheme, Scheme::Parse(scheme_name));
  for (const MoeLayerSpec& layer : model.layers) {
    MOERT_ASSIGN_OR_RETURN(RecordLayout layout,
                           ExpertRecordLayout(layer, ExpertFormat::Uniform(scheme)));
    version.layouts.push_back(layout);
  }
  return version;
}

class HostSource final : public ExpertSource {
 public:
  HostSource(std::string name, MoeModelSpec model, HostWeights weights, bool records,
             std::vector<Version> versions)
      : name_(std::move(name)),
        model_(std::move(model)),
        weights_(std::move(weights)),
        records_(records),
        versions_(std::move(versions)) {}

  const MoeModelSpec& model() const override { return model_; }
  const std::string& name() const override { return name_; }
  int num_versions() const override { return static_cast<int>(versions_.size()); }
  absl::string_view version_name(int version) const override { return versions_[version].name; }
  const RecordLayout& layout(int layer, int, int version) const override {
    return versions_[version].layouts[layer];
  }

  int64_t scratch_bytes() const override {
    if (records_) return 0;
    // Memory that the host fills, and the same as fp32 if it fills f16.
    const int64_t element = weights_.dtype == DType::kF16 ? 6 : DTypeBytes(weights_.dtype);
    int64_t bytes = 0;
    for (const MoeLayerSpec& l : model_.layers) {
      for (const int64_t cols : {l.hidden, l.intermediate}) {
        bytes = std::max(bytes, PieceRows(cols) * cols * element);
      }
    }
    return bytes;
  }

  absl::Status ReadRecord(int layer, int expert, int version,
                          absl::Span<std::byte> dst) const override {
    const RecordLayout& record = layout(layer, expert, version);
    if (!records_) return ReadMatrices(layer, expert, record, dst.data());
    WeightRead read{layer, expert, WeightPart::kRecord, version};
    read.rows = 1;
    read.cols = record.bytes;
    read.dtype = DType::kU8;
    read.dst = dst.data();
    return Read(read);
  }

  const std::byte* PinnedRecord(int layer, int expert, int version) const override {
    if (weights_.pinned_record == nullptr) return nullptr;
    const std::byte* record = weights_.pinned_record(layer, expert, version);
    return reinterpret_cast<uintptr_t>(record) % kRecordAlignment == 0 ? record : nullptr;
  }

  absl::StatusOr<LayerConstants> ReadConstants(int layer) const override {
    const MoeLayerSpec& spec = model_.layers[layer];
    LayerConstants constants;
    const auto floats = [&](WeightPart part, int64_t rows, int64_t cols, std::vector<float>* out) {
      out->resize(rows * cols);
      return Read({layer, 0, part, 0, 0, rows, cols, DType::kF32, out->data()});
    };
    const bool gate = !spec.routing.external();
    if (gate) {
      MOERT_RETURN_IF_ERROR(
          floats(WeightPart::kRouter, spec.num_experts, spec.hidden, &constants.gate));
    }
    if (gate && spec.routing.selection_bias) {
      MOERT_RETURN_IF_ERROR(
          floats(WeightPart::kSelectionBias, 1, spec.num_experts, &constants.selection_bias));
    }
    if (spec.shared_gate) {
      MOERT_RETURN_IF_ERROR(
          floats(WeightPart::kSharedGate, 1, spec.hidden, &constants.shared_gate));
    }
    const RoutingSpec& r = spec.routing;
    if (r.logit_bias) {
      MOERT_RETURN_IF_ERROR(
          floats(WeightPart::kLogitBias, 1, spec.num_experts, &constants.logit_bias));
    }
    if (r.expert_scales) {
      MOERT_RETURN_IF_ERROR(
          floats(WeightPart::kExpertScales, 1, spec.num_experts, &constants.expert_scales));
    }
    if (r.hash_vocab > 0) {
      constants.hash_experts.resize(r.hash_vocab * r.top_k);
      MOERT_RETURN_IF_ERROR(Read({layer, 0, WeightPart::kHashExperts, 0, 0, r.hash_vocab, r.top_k,
                                  DType::kI32, constants.hash_experts.data()}));
    }
    if (spec.shared_intermediate > 0) {
      MOERT_ASSIGN_OR_RETURN(constants.shared_layout, SharedRecordLayout(spec));
      constants.shared_expert.resize(constants.shared_layout.bytes);
      MOERT_RETURN_IF_ERROR(ReadMatrices(layer, kSharedExpert, constants.shared_layout,
                                         constants.shared_expert.data()));
    }
    return constants;
  }

 private:
  int64_t PieceRows(int64_t cols) const {
    const int64_t tile = cols * DTypeBytes(weights_.dtype) * kRowTile;
    return std::max<int64_t>(1, kPieceBytes / tile) * kRowTile;
  }

  absl::Status Read(const WeightRead& read) const {
    absl::Status status;
    try {
      status = weights_.read(read);
    } catch (...) {  // the contract forbids it; dying for it helps nobody
      status = absl::InternalError("the host's read threw an exception");
    }
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        fmt::format("{} layer {} expert {} {}: {}", name_, read.layer, read.expert,
                                    PartName(read.part), absl::string_view(status.message())));
  }

  absl::Status ReadMatrices(int layer, int expert, const RecordLayout& layout,
                            std::byte* record) const {
    std::memset(record, 0, layout.bytes);  // what lies between the sections
    struct Part {
      WeightPart weights, bias;
      const MatrixLayout* matrix;
    };
    const Part parts[] = {{WeightPart::kGateProj, WeightPart::kGateBias, &layout.gate},
                          {WeightPart::kUpProj, WeightPart::kUpBias, &layout.up},
                          {WeightPart::kDownProj, WeightPart::kDownBias, &layout.down}};
    std::vector<std::byte> piece;
    std::vector<float> widened;
    for (const auto& [part, bias, matrix] : parts) {
      if (part == WeightPart::kGateProj && !layout.contents.gate) continue;
      if (matrix->bias_offset > 0) {
        MOERT_RETURN_IF_ERROR(Read({layer, expert, bias, 0, 0, 1, matrix->rows, DType::kF32,
                                    record + matrix->bias_offset}));
      }
      const int64_t step = PieceRows(matrix->k);
      for (int64_t row = 0; row < matrix->rows; row += step) {
        const int64_t rows = std::min(step, matrix->rows - row);
        WeightRead read{layer, expert, part, 0, row, rows, matrix->k, weights_.dtype};
        piece.resize(read.bytes());
        read.dst = piece.data();
        MOERT_RETURN_IF_ERROR(Read(read));
        MOERT_RETURN_IF_ERROR(Pack(*matrix, row, rows, piece.data(), &widened, record));
      }
    }
    return absl::OkStatus();
  }

  /// Packs rows [row, row + rows) of a matrix. Row blocks are consecutive in a record, so a piece
  /// is like a matrix of its own that begins further on.
  absl::Status Pack(const MatrixLayout& matrix, int64_t row, int64_t rows, const std::byte* piece,
                    std::vector<float>* widened, std::byte* record) const {
    MatrixLayout part = matrix;
    part.rows = rows;
    part.padded_rows = (rows + kRowTile - 1) / kRowTile * kRowTile;
    part.weight_offset += row * matrix.padded_k * 2;
    part.weight_bytes = part.padded_rows * matrix.padded_k * 2;
    const size_t count = static_cast<size_t>(rows * matrix.k);
    switch (weights_.dtype) {
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
  const HostWeights weights_;
  const bool records_;
  const std::vector<Version> versions_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertSource>> MakeHostSource(std::string name, MoeModelSpec model,
                                                             HostWeights weights) try {
  MOERT_RETURN_IF_ERROR(model.Validate());
  if (weights.read == nullptr) {
    return InvalidArgument("{}: a host source needs a read function", name);
  }
  if (weights.dtype != DType::kF32 && weights.dtype != DType::kBF16 &&
      weights.dtype != DType::kF16) {
    return InvalidArgument("{}: weights of dtype {}; legal: f32, bf16, f16", name,
                           DTypeName(weights.dtype));
  }
  const bool records = !weights.schemes.empty();
  if (weights.pinned_record != nullptr && !records) {
    return InvalidArgument("{}: pinned_record without schemes; packed records alone can be pinned",
                           name);
  }
  if (!records) weights.schemes = {"bf16"};
  std::vector<Version> versions;
  for (const std::string& scheme : weights.schemes) {
    MOERT_ASSIGN_OR_RETURN(Version version, MakeVersion(scheme, model));
    if (!versions.empty() && version.layouts[0].bytes > versions.back().layouts[0].bytes) {
      return InvalidArgument("{}: scheme {} is larger than {} before it; the most bits come first",
                             name, version.name, versions.back().name);
    }
    versions.push_back(std::move(version));
  }
  return std::make_unique<HostSource>(std::move(name), std::move(model), std::move(weights),
                                      records, std::move(versions));
} catch (...) {
  return ExceptionStatus("making a source");
}

}  // namespace moert
