#include "source/shard_source.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/checked_math.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "quant/hadamard.h"

namespace moert {
namespace {

/// The number of scale sections of a matrix: one, or two if the scheme is asymmetric.
int64_t ScaleSections(const Scheme& scheme) {
  return scheme.is_bf16() ? 0 : scheme.symmetric ? 1 : 2;
}

/// Copies rows [first, first + to.rows) of a matrix; row blocks are consecutive.
void SliceRows(const MatrixLayout& from, const std::byte* whole, int64_t first,
               const MatrixLayout& to, std::byte* part) {
  const int64_t row_bytes = from.padded_k * from.scheme.weight_bits / 8;
  std::memcpy(part + to.weight_offset, whole + from.weight_offset + first * row_bytes,
              to.weight_bytes);
  const int64_t groups = CeilDiv<int64_t>(from.k, from.group) * ScaleSections(from.scheme);
  for (int64_t g = 0; g < groups; ++g) {
    std::memcpy(part + to.scale_offset + g * to.padded_rows * 2,
                whole + from.scale_offset + (g * from.padded_rows + first) * 2, to.padded_rows * 2);
  }
}

/// Copies inputs [first, first + to.k) of a matrix: a contiguous run of every row block.
void SliceInputs(const MatrixLayout& from, const std::byte* whole, int64_t first,
                 const MatrixLayout& to, std::byte* part) {
  const int64_t unit = kRowTile * from.scheme.weight_bits / 8;  // bytes of one k of a row block
  for (int64_t block = 0; block < from.padded_rows / kRowTile; ++block) {
    std::memcpy(part + to.weight_offset + block * to.padded_k * unit,
                whole + from.weight_offset + (block * from.padded_k + first) * unit,
                to.padded_k * unit);
  }
  const int64_t sections = ScaleSections(from.scheme);
  if (sections == 0) return;
  const int64_t from_groups = CeilDiv<int64_t>(from.k, from.group);
  const int64_t to_groups = CeilDiv<int64_t>(to.k, to.group);
  const int64_t first_group = from_groups == 1 ? 0 : first / from.group;
  for (int64_t s = 0; s < sections; ++s) {
    std::memcpy(part + to.scale_offset + s * to_groups * to.padded_rows * 2,
                whole + from.scale_offset + (s * from_groups + first_group) * from.padded_rows * 2,
                to_groups * to.padded_rows * 2);
  }
}

/// Refuses records whose channels cannot be cut: those of imported schemes, with biases, or without
/// a gate.
absl::Status CheckCut(const RecordLayout& record, int layer) {
  std::string why;
  for (const Scheme* scheme : {&record.format.gate, &record.format.up, &record.format.down}) {
    if (scheme->imported()) why = fmt::format("of scheme {}", scheme->Name());
  }
  if (record.contents.biases) why = "with biases";
  if (!record.contents.gate) why = "without a gate";
  if (why.empty()) return absl::OkStatus();
  return Unimplemented("shard: layer {}: experts {} cannot be cut by channels; shard by experts",
                       layer, why);
}

/// Whether channels [first, first + count) of `intermediate` can be cut out of a record.
absl::Status CheckSlice(const ExpertFormat& format, int64_t intermediate, int64_t first,
                        int64_t count, const std::string& where) {
  int64_t unit = kKTile;
  std::string why = "tiles of 64";
  if (!format.down.is_bf16() && format.down.group > 0 && format.down.group < intermediate) {
    unit = std::max<int64_t>(unit, format.down.group);
    why = fmt::format("groups of {}", format.down.Name());
  }
  if (format.hadamard && HadamardBlock(intermediate) > unit) {
    unit = HadamardBlock(intermediate);
    why = fmt::format("Hadamard blocks of {}", unit);
  }
  const int64_t end = first + count;
  // The last group may be shorter.
  if (first % unit == 0 && (end % unit == 0 || end == intermediate) &&
      (!format.hadamard || HadamardBlock(count) == HadamardBlock(intermediate))) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "shard: channels [{}, {}) of {}: begin and end have to be multiples of {} ({})", first, end,
      where, unit, why);
}

class ShardSource final : public ExpertSource {
 public:
  ShardSource(std::shared_ptr<const ExpertSource> source, const ShardPlan& plan)
      : source_(std::move(source)), plan_(plan), model_(source_->model()) {}

  absl::Status Init() {
    for (int l = 0; l < model_.num_layers(); ++l) {
      MoeLayerSpec& layer = model_.layers[l];
      const MoeLayerSpec& whole = source_->model().layers[l];
      first_.push_back(total_);
      if (!plan_.all_experts) {
        layer.num_experts = static_cast<int>(Experts(l).size());
        const RoutingSpec& routing = whole.routing;
        if (routing.logit_bias || routing.expert_scales || routing.hash_vocab > 0) {
          return Unimplemented(
              "shard: layer {} has {}, which an engine over some experts does not route by yet; "
              "give the layer the routing kind external, or shard by channels",
              l,
              routing.logit_bias      ? "a bias of the router's logits"
              : routing.expert_scales ? "scales of experts"
                                      : "experts by token id");
        }
        RoutingSpec external;
        external.kind = RoutingKind::kExternal;
        external.top_k = routing.top_k;
        external.weight_input = routing.weight_input;
        layer.routing = external;
      }
      total_ += layer.num_experts;
      if (!plan_.shared_experts) {
        layer.shared_intermediate = 0;
        layer.shared_gate = false;
      }
      if (sliced()) MOERT_RETURN_IF_ERROR(Slice(l, whole, &layer));
    }
    return model_.Validate();
  }

  const MoeModelSpec& model() const override { return model_; }
  const std::string& name() const override { return source_->name(); }
  int num_versions() const override { return source_->num_versions(); }
  absl::string_view version_name(int version) const override {
    return source_->version_name(version);
  }
  const RecordLayout& layout(int layer, int expert, int version) const override {
    if (!sliced()) return source_->layout(layer, Whole(layer, expert), version);
    return layouts_[(first_[static_cast<size_t>(layer)] + expert) * num_versions() + version];
  }

  absl::Status ReadRecord(int layer, int expert, int version,
                          absl::Span<std::byte> dst) const override {
    const int whole_expert = Whole(layer, expert);
    if (!sliced()) return source_->ReadRecord(layer, whole_expert, version, dst);
    const RecordLayout& whole = source_->layout(layer, whole_expert, version);
    AlignedBuffer record;
    MOERT_RETURN_IF_ERROR(record.Reset(RoundUp(whole.bytes, kRecordAlignment)));
    MOERT_RETURN_IF_ERROR(source_->ReadRecord(
        layer, whole_expert, version,
        {record.data(), static_cast<size_t>(RoundUp(whole.bytes, kRecordAlignment))}));
    SliceRecord(whole, record.data(), plan_.first_channel, layout(layer, expert, version),
                dst.data());
    return absl::OkStatus();
  }

  int64_t num_pieces(int layer, int expert, int version) const override {
    return sliced() ? 1 : source_->num_pieces(layer, Whole(layer, expert), version);
  }
  absl::Status ReadPiece(int layer, int expert, int version, int64_t piece,
                         absl::Span<std::byte> dst) const override {
    if (sliced()) return ReadRecord(layer, expert, version, dst);
    return source_->ReadPiece(layer, Whole(layer, expert), version, piece, dst);
  }

  const std::byte* PinnedRecord(int layer, int expert, int version) const override {
    return sliced() ? nullptr : source_->PinnedRecord(layer, Whole(layer, expert), version);
  }

  const std::byte* HostRecord(int layer, int expert, int version) const override {
    return sliced() ? nullptr : source_->HostRecord(layer, Whole(layer, expert), version);
  }

  const std::byte* HostPart(int layer, int expert, int version, int part) const override {
    return sliced() ? nullptr : source_->HostPart(layer, Whole(layer, expert), version, part);
  }

  int64_t scratch_bytes() const override { return source_->scratch_bytes() + largest_; }

  absl::StatusOr<LayerConstants> ReadConstants(int layer) const override {
    MOERT_ASSIGN_OR_RETURN(LayerConstants constants, source_->ReadConstants(layer));
    const MoeLayerSpec& spec = model_.layers[layer];
    if (!plan_.all_experts) {
      constants.gate = {};
      constants.selection_bias = {};
    }
    if (!plan_.shared_experts) {
      constants.shared_expert = {};
      constants.shared_gate = {};
      constants.shared_layout = {};
    } else if (sliced() && spec.shared_intermediate > 0) {
      MOERT_ASSIGN_OR_RETURN(const RecordLayout part, SharedRecordLayout(spec));
      std::vector<std::byte> record(part.bytes);
      SliceRecord(constants.shared_layout, constants.shared_expert.data(), shared_first_[layer],
                  part, record.data());
      constants.shared_expert = std::move(record);
      constants.shared_layout = part;
    }
    return constants;
  }

 private:
  bool sliced() const { return plan_.num_channels > 0; }
  const std::vector<int32_t>& Experts(int layer) const { return plan_.experts[layer]; }
  int Whole(int layer, int expert) const {
    return plan_.all_experts ? expert : Experts(layer)[expert];
  }

  absl::Status Slice(int l, const MoeLayerSpec& whole, MoeLayerSpec* layer) {
    const int64_t first = plan_.first_channel, count = plan_.num_channels;
    if (first > whole.intermediate || count > whole.intermediate - first) {
      return InvalidArgument("shard: {} channels from {} on: layer {} has {}", count, first, l,
                             whole.intermediate);
    }
    layer->intermediate = count;
    for (int e = 0; e < layer->num_experts; ++e) {
      for (int v = 0; v < num_versions(); ++v) {
        const RecordLayout& record = source_->layout(l, Whole(l, e), v);
        if (record.opaque()) {
          return absl::InvalidArgumentError(
              "shard: the records are opaque, the library cannot slice them");
        }
        if (record.down.k != whole.intermediate) {
          return InvalidArgument("shard: layer {} version {} has {} channels, the layer {}", l,
                                 version_name(v).data(), record.down.k, whole.intermediate);
        }
        MOERT_RETURN_IF_ERROR(CheckCut(record, l));
        MOERT_RETURN_IF_ERROR(CheckSlice(record.format, whole.intermediate, first, count,
                                         fmt::format("layer {}", l)));
        MOERT_ASSIGN_OR_RETURN(RecordLayout part, ExpertRecordLayout(*layer, record.format));
        layouts_.push_back(std::move(part));
        largest_ = std::max(largest_, RoundUp(record.bytes, kRecordAlignment));
      }
    }
    // In proportion, so that the shards of a layer cover its shared experts exactly once.
    const int64_t shared = layer->shared_intermediate;
    shared_first_.push_back(first * shared / whole.intermediate);
    if (shared == 0) return absl::OkStatus();
    if (first * shared % whole.intermediate != 0 || count * shared % whole.intermediate != 0) {
      return InvalidArgument(
          "shard: channels [{}, {}) of {}: {} shared channels do not divide likewise", first,
          first + count, whole.intermediate, shared);
    }
    layer->shared_intermediate = count * shared / whole.intermediate;
    return CheckSlice(ExpertFormat::Uniform(Scheme{}), shared, shared_first_.back(),
                      layer->shared_intermediate, fmt::format("layer {}'s shared experts", l));
  }

  const std::shared_ptr<const ExpertSource> source_;
  const ShardPlan plan_;
  MoeModelSpec model_;
  std::vector<int64_t> first_;         // of each layer, experts before it
  std::vector<RecordLayout> layouts_;  // of slices, by expert and version
  std::vector<int64_t> shared_first_;  // of slices, of each layer
  int64_t total_ = 0;
  int64_t largest_ = 0;  // of the whole records that are sliced
};

}  // namespace

void SliceRecord(const RecordLayout& whole, const std::byte* from, int64_t first,
                 const RecordLayout& layout, std::byte* to) {
  std::memset(to, 0, layout.bytes);  // what lies between the sections
  SliceRows(whole.gate, from, first, layout.gate, to);
  SliceRows(whole.up, from, first, layout.up, to);
  SliceInputs(whole.down, from, first, layout.down, to);
}

absl::StatusOr<std::shared_ptr<const ExpertSource>> MakeShardSource(
    std::shared_ptr<const ExpertSource> source, const ShardPlan& plan) {
  auto shard = std::make_shared<ShardSource>(std::move(source), plan);
  MOERT_RETURN_IF_ERROR(shard->Init());
  return shard;
}

}  // namespace moert
