#include "moert/source/opaque_source.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/checked_math.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "moert/tools/env.h"
#include "source/read_records.h"

namespace moert {
namespace {

/// Checks the weights against the model and each other.
class Checker {
 public:
  Checker(const std::string& name, const MoeModelSpec& model, const OpaqueWeights& weights)
      : name_(name), model_(model), weights_(weights) {}

  absl::Status Check() const {
    if (weights_.layers.size() != model_.layers.size()) {
      return InvalidArgument("{}: parts of {} layers, the model has {}", name_,
                             weights_.layers.size(), model_.layers.size());
    }
    for (size_t l = 0; l < weights_.layers.size(); ++l) {
      const std::vector<OpaquePart>& parts = weights_.layers[l];
      if (model_.layers[l].shared_intermediate != 0) {
        return Bad(l, "shared_intermediate is {}, legal is 0: shared experts are the host's",
                   model_.layers[l].shared_intermediate);
      }
      if (!model_.layers[l].routing.external() && weights_.gates == nullptr) {
        return Bad(l, "routing kind {} needs the gate, and there is no `gates` function",
                   RoutingKindName(model_.layers[l].routing.kind));
      }
      if (parts.empty() || parts.size() > kMaxRecordParts) {
        return Bad(l, "{} parts, legal is 1 to {}", parts.size(), kMaxRecordParts);
      }
      for (size_t p = 0; p < parts.size(); ++p) MOERT_RETURN_IF_ERROR(CheckPart(l, p));
      MOERT_RETURN_IF_ERROR(CheckSlots(l));
    }
    return absl::OkStatus();
  }

  /// After Check: whether the parts in files lie within the files.
  absl::Status CheckFiles(const std::vector<std::unique_ptr<RandomAccessFile>>& files) const {
    for (size_t l = 0; l < weights_.layers.size(); ++l) {
      for (size_t p = 0; p < weights_.layers[l].size(); ++p) {
        const OpaquePart& part = weights_.layers[l][p];
        if (part.file < 0) continue;
        const RandomAccessFile& file = *files[part.file];
        const auto end = End(l, part).value();
        if (end && *end <= file.size()) continue;
        return Bad(l,
                   "part {} of {} experts from offset {} on, {} bytes apart, ends behind {} of "
                   "{} bytes",
                   p, model_.layers[l].num_experts, part.offset, part.stride, file.path(),
                   file.size());
      }
    }
    return absl::OkStatus();
  }

 private:
  template <typename... Args>
  absl::Status Bad(size_t layer, fmt::format_string<Args...> format, Args&&... args) const {
    return InvalidArgument("{} layer {}: {}", name_, layer,
                           fmt::format(format, std::forward<Args>(args)...));
  }

  // The end of the last expert's bytes, from the beginning of the memory or file.
  Checked<int64_t> End(size_t l, const OpaquePart& part) const {
    return Checked<int64_t>(part.stride)
        .Mul(model_.layers[l].num_experts - 1)
        .Add(part.offset)
        .Add(part.bytes);
  }

  absl::Status CheckPart(size_t l, size_t p) const {
    const OpaquePart& part = weights_.layers[l][p];
    constexpr int64_t kMostBytes = int64_t{1} << 40;
    if (part.bytes < 1 || part.bytes > kMostBytes) {
      return Bad(l, "part {}: bytes is {}, legal is 1 to {}", p, part.bytes, kMostBytes);
    }
    if (part.zeros < 0 || part.zeros > kMostBytes) {
      return Bad(l, "part {}: zeros is {}, legal is 0 to {}", p, part.zeros, kMostBytes);
    }
    if (part.alignment < 1 || part.alignment > kRecordAlignment ||
        (part.alignment & (part.alignment - 1)) != 0) {
      return Bad(l, "part {}: alignment is {}, legal is a power of two up to {}", p, part.alignment,
                 kRecordAlignment);
    }
    if (part.stride_multiple < 1 || part.stride_multiple > kRecordAlignment) {
      return Bad(l, "part {}: stride_multiple is {}, legal is 1 to {}", p, part.stride_multiple,
                 kRecordAlignment);
    }
    if (part.file < -1 || part.file >= static_cast<int>(weights_.files.size())) {
      return Bad(l, "part {}: file is {}, there are {}; -1: none", p, part.file,
                 weights_.files.size());
    }
    if (part.memory == nullptr && part.file < 0) {
      if (weights_.read != nullptr) return absl::OkStatus();
      return Bad(l, "part {}: neither in memory nor in a file, and there is no `read` function", p);
    }
    if (part.offset < 0) return Bad(l, "part {}: offset is {}, legal is 0 or more", p, part.offset);
    if (part.stride < part.bytes) {  // counted in elements or blocks, most likely
      return Bad(l, "part {}: stride is {}, legal is 0 or at least the {} bytes of an expert", p,
                 part.stride, part.bytes);
    }
    const auto first = static_cast<int64_t>(reinterpret_cast<uintptr_t>(part.memory));
    if (End(l, part).Add(first).value()) return absl::OkStatus();
    return Bad(l,
               "part {}: of {} experts from offset {} on, {} bytes apart, ends behind the last "
               "address",
               p, model_.layers[l].num_experts, part.offset, part.stride);
  }

  // After CheckPart: the common multiple of numbers without common factors grows fast.
  absl::Status CheckSlots(size_t l) const {
    constexpr int64_t kMostBytes = int64_t{1} << 40;
    int64_t apart = kRecordAlignment;
    for (const OpaquePart& part : weights_.layers[l]) {
      apart = std::lcm(apart, part.stride_multiple);
      if (apart <= kMostBytes) continue;
      return Bad(l,
                 "slots a multiple of every part's stride_multiple apart, and of {}, are {} bytes "
                 "apart or more, legal is up to {}",
                 kRecordAlignment, apart, kMostBytes);
    }
    return absl::OkStatus();
  }

  const std::string& name_;
  const MoeModelSpec& model_;
  const OpaqueWeights& weights_;
};

class OpaqueSource final : public ExpertSource {
 public:
  OpaqueSource(std::string name, MoeModelSpec model, OpaqueWeights weights,
               std::vector<std::unique_ptr<RandomAccessFile>> files)
      : name_(std::move(name)),
        model_(std::move(model)),
        weights_(std::move(weights)),
        files_(std::move(files)) {
    for (const std::vector<OpaquePart>& parts : weights_.layers) {
      layouts_.push_back(Place(parts));
      pieces_.push_back(Cut(parts));
    }
    if (weights_.product != nullptr) {
      product_ = [this](const OpaqueProduct& product) { return Multiply(product); };
    }
  }

  const MoeModelSpec& model() const override { return model_; }
  const std::string& name() const override { return name_; }
  int num_versions() const override { return 1; }
  absl::string_view version_name(int /*version*/) const override { return weights_.format; }
  const RecordLayout& layout(int layer, int /*expert*/, int /*version*/) const override {
    return layouts_[layer];
  }

  absl::Status ReadRecord(int layer, int expert, int /*version*/,
                          absl::Span<std::byte> dst) const override {
    const std::vector<OpaquePart>& parts = weights_.layers[layer];
    for (size_t p = 0; p < parts.size(); ++p) {
      MOERT_RETURN_IF_ERROR(Read(layer, expert, {static_cast<int>(p), 0, parts[p].bytes}, dst));
    }
    return absl::OkStatus();
  }

  int64_t num_pieces(int layer, int /*expert*/, int /*version*/) const override {
    return std::ssize(pieces_[layer]);
  }
  absl::Status ReadPiece(int layer, int expert, int /*version*/, int64_t piece,
                         absl::Span<std::byte> dst) const override {
    return Read(layer, expert, pieces_[layer][piece], dst);
  }

  const std::byte* HostPart(int layer, int expert, int /*version*/, int part) const override {
    const OpaquePart& from = weights_.layers[layer][part];
    if (from.memory == nullptr) return nullptr;
    const std::byte* const at = At(from, expert);
    return reinterpret_cast<uintptr_t>(at) % from.alignment == 0 ? at : nullptr;
  }

  const std::function<absl::Status(const OpaqueProduct&)>* product() const override {
    return product_ == nullptr ? nullptr : &product_;
  }

  absl::StatusOr<LayerConstants> ReadConstants(int layer) const override {
    const MoeLayerSpec& spec = model_.layers[layer];
    LayerConstants constants;
    if (spec.routing.external()) return constants;
    const auto floats = [&](WeightPart part, int64_t rows, int64_t cols, std::vector<float>* out) {
      out->resize(rows * cols);
      return weights_.gates({layer, 0, part, 0, 0, rows, cols, DType::kF32, out->data()});
    };
    MOERT_RETURN_IF_ERROR(
        floats(WeightPart::kRouter, spec.num_experts, spec.hidden, &constants.gate));
    if (spec.routing.selection_bias) {
      MOERT_RETURN_IF_ERROR(
          floats(WeightPart::kSelectionBias, 1, spec.num_experts, &constants.selection_bias));
    }
    if (spec.routing.logit_bias) {
      MOERT_RETURN_IF_ERROR(
          floats(WeightPart::kLogitBias, 1, spec.num_experts, &constants.logit_bias));
    }
    return constants;
  }

 private:
  /// A byte range of a part.
  struct Piece {
    int part = 0;
    int64_t first = 0, bytes = 0;
  };

  /// A function reads whole parts, so these are not cut.
  static std::vector<Piece> Cut(const std::vector<OpaquePart>& parts) {
    std::vector<Piece> pieces;
    for (size_t p = 0; p < parts.size(); ++p) {
      const int64_t all = parts[p].bytes;
      const bool whole = parts[p].memory == nullptr && parts[p].file < 0;
      const int64_t most = whole ? all : kRecordPieceBytes;
      for (int64_t first = 0; first < all; first += most) {
        pieces.push_back({static_cast<int>(p), first, std::min(most, all - first)});
      }
    }
    return pieces;
  }

  static RecordLayout Place(const std::vector<OpaquePart>& parts) {
    RecordLayout layout;
    int64_t end = 0;
    for (const OpaquePart& part : parts) {
      const int64_t offset = RoundUp(end, part.alignment);
      layout.parts.push_back({offset, part.bytes + part.zeros});
      for (const int64_t multiple : {part.stride_multiple, part.alignment}) {
        layout.slot_multiple = std::lcm(layout.slot_multiple, multiple);
      }
      end = offset + part.bytes + part.zeros;
    }
    layout.bytes = RoundUp(end, kSectionAlignment);
    return layout;
  }

  absl::Status Multiply(const OpaqueProduct& product) const {
    const absl::Status status = weights_.product(product);
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        fmt::format("{} layer {}: product on the CPU: {}", name_, product.layer,
                                    absl::string_view(status.message())));
  }

  /// The address of a part in memory.
  static const std::byte* At(const OpaquePart& part, int expert) {
    return static_cast<const std::byte*>(part.memory) + part.offset + expert * part.stride;
  }

  absl::Status Read(int layer, int expert, const Piece& piece, absl::Span<std::byte> dst) const {
    const OpaquePart& part = weights_.layers[layer][piece.part];
    std::byte* const to = dst.data() + layouts_[layer].parts[piece.part].offset + piece.first;
    const int64_t end = piece.first + piece.bytes;
    if (end == part.bytes) std::memset(to + piece.bytes, 0, static_cast<size_t>(part.zeros));
    if (part.file < 0 && part.memory != nullptr) {
      std::memcpy(to, At(part, expert) + piece.first, static_cast<size_t>(piece.bytes));
      return absl::OkStatus();
    }
    const absl::Status status =
        part.file < 0 ? weights_.read({layer, expert, piece.part, piece.bytes, to})
                      : files_[part.file]->Read(part.offset + expert * part.stride + piece.first,
                                                {to, static_cast<size_t>(piece.bytes)});
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        fmt::format("{} layer {} expert {} part {}: {}", name_, layer, expert,
                                    piece.part, absl::string_view(status.message())));
  }

  const std::string name_;
  const MoeModelSpec model_;
  const OpaqueWeights weights_;
  const std::vector<std::unique_ptr<RandomAccessFile>> files_;
  std::vector<RecordLayout> layouts_;       // of each layer
  std::vector<std::vector<Piece>> pieces_;  // of a record of each layer
  std::function<absl::Status(const OpaqueProduct&)> product_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertSource>> MakeOpaqueSource(std::string name, MoeModelSpec model,
                                                               OpaqueWeights weights) try {
  MOERT_RETURN_IF_ERROR(model.Validate());
  for (std::vector<OpaquePart>& parts : weights.layers) {
    for (OpaquePart& part : parts) {
      if (part.stride == 0) part.stride = part.bytes;
    }
  }
  const Checker checker(name, model, weights);
  MOERT_RETURN_IF_ERROR(checker.Check());
  std::vector<std::unique_ptr<RandomAccessFile>> files;
  for (const std::string& path : weights.files) {
    MOERT_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file,
                           Env::Default()->Open(path, FileAccess::kBuffered));
    files.push_back(std::move(file));
  }
  MOERT_RETURN_IF_ERROR(checker.CheckFiles(files));
  return std::make_unique<OpaqueSource>(std::move(name), std::move(model), std::move(weights),
                                        std::move(files));
} catch (...) {
  return ExceptionStatus("a source of opaque records");
}

}  // namespace moert
