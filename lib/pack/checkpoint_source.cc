#include "pack/checkpoint_source.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"

namespace moert {
namespace {

class CheckpointSource final : public ExpertSource {
 public:
  static absl::StatusOr<std::unique_ptr<ExpertSource>> Open(const std::string& model_dir,
                                                            bool widen) {
    auto source = std::unique_ptr<CheckpointSource>(new CheckpointSource(model_dir));
    MOERT_ASSIGN_OR_RETURN(source->config_, LoadHfConfig(model_dir));
    MOERT_ASSIGN_OR_RETURN(source->checkpoint_, Checkpoint::Open(model_dir));
    MOERT_ASSIGN_OR_RETURN(source->experts_,
                           CheckpointExperts::Create(source->checkpoint_.get(), &source->config_));
    if (!widen) MOERT_RETURN_IF_ERROR(source->experts_->CheckRecords());
    source->version_ = widen ? PackVersion::Uniform(Scheme{}) : StoredVersion(*source->experts_);
    for (int l = 0; l < source->config_.moe.num_layers(); ++l) {
      const MoeLayerSpec& layer = source->config_.moe.layers[l];
      std::vector<RecordLayout>& layouts = source->layouts_.emplace_back();
      for (const ExpertFormat& format : source->version_.formats) {
        MOERT_ASSIGN_OR_RETURN(RecordLayout layout, ExpertRecordLayout(layer, format));
        layouts.push_back(std::move(layout));
      }
      source->scratch_bytes_ =
          std::max(source->scratch_bytes_, source->experts_->scratch_bytes(l, widen));
    }
    return source;
  }

  const MoeModelSpec& model() const override { return config_.moe; }
  const std::string& name() const override { return name_; }
  int num_versions() const override { return 1; }
  absl::string_view version_name(int) const override { return version_.name; }
  const RecordLayout& layout(int layer, int expert, int) const override {
    const auto format = static_cast<size_t>(version_.format_index(layer, expert));
    return layouts_[layer][format];
  }
  int64_t scratch_bytes() const override { return scratch_bytes_; }

  absl::Status ReadRecord(int layer, int expert, int version,
                          absl::Span<std::byte> dst) const override {
    return Read(layer, expert, version, dst, [&](const RecordLayout& layout) {
      return experts_->ReadRecord(layer, expert, layout, dst.data());
    });
  }

  int64_t num_pieces(int layer, int expert, int version) const override {
    return experts_->num_pieces(layer, expert, layout(layer, expert, version));
  }
  absl::Status ReadPiece(int layer, int expert, int version, int64_t piece,
                         absl::Span<std::byte> dst) const override {
    return Read(layer, expert, version, dst, [&](const RecordLayout& layout) {
      return experts_->ReadPiece(layer, expert, layout, piece, dst.data());
    });
  }

  absl::StatusOr<LayerConstants> ReadConstants(int layer) const override {
    MOERT_RETURN_IF_ERROR(CheckKey(layer, 0, 0));
    return experts_->ReadConstants(layer);
  }

 private:
  explicit CheckpointSource(std::string name) : name_(std::move(name)) {}

  template <typename ReadIt>
  absl::Status Read(int layer, int expert, int version, absl::Span<std::byte> dst,
                    ReadIt read_it) const {
    MOERT_RETURN_IF_ERROR(CheckKey(layer, expert, version));
    const RecordLayout& layout = this->layout(layer, expert, version);
    if (static_cast<int64_t>(dst.size()) < layout.bytes) {
      return InvalidArgument("a record of {} bytes does not fit into {}", layout.bytes, dst.size());
    }
    try {
      return read_it(layout);
    } catch (const std::bad_alloc&) {
      return ResourceExhausted("{}: out of memory for layer {}, expert {}", name_, layer, expert);
    }
  }

  absl::Status CheckKey(int layer, int expert, int version) const {
    if (layer >= 0 && layer < config_.moe.num_layers() && version == 0 && expert >= 0 &&
        expert < config_.moe.layers[layer].num_experts) {
      return absl::OkStatus();
    }
    return InvalidArgument("{}: has no layer {}, expert {}, version {}", name_, layer, expert,
                           version);
  }

  const std::string name_;
  HfConfig config_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<CheckpointExperts> experts_;
  PackVersion version_;
  std::vector<std::vector<RecordLayout>> layouts_;  // [layer][format of the version]
  int64_t scratch_bytes_ = 0;
};

}  // namespace

PackVersion StoredVersion(const CheckpointExperts& experts) {
  const MoeModelSpec& model = experts.model();
  PackVersion version;
  for (int l = 0; l < model.num_layers(); ++l) {
    std::vector<int>& indices = version.assignment.emplace_back();
    for (int e = 0; e < model.layers[l].num_experts; ++e) {
      indices.push_back(version.AddFormat(experts.stored(l, e)));
    }
  }
  const bool mixed = version.formats.size() > 1 || !version.formats[0].uniform();
  version.name = mixed ? "stored" : version.formats[0].up.Name();
  if (version.formats.size() == 1) version.assignment.clear();
  return version;
}

absl::StatusOr<std::unique_ptr<ExpertSource>> OpenCheckpointSource(const std::string& model_dir,
                                                                   bool widen) {
  return CheckpointSource::Open(model_dir, widen);
}

}  // namespace moert
