#include "pack/expert_pack.h"

#include <deque>
#include <new>
#include <tuple>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/fmt_absl.h"
#include "base/hash64.h"
#include "base/status_macros.h"
#include "moert/offline/checkpoint.h"
#include "pack/pack_manifest.h"
#include "pack/pack_writer.h"

namespace moert {

static_assert(kRecordAlignment % kDirectAlignment == 0, "records are read unbuffered");
namespace {

class ExpertPack final : public ExpertSource {
 public:
  static absl::StatusOr<std::unique_ptr<ExpertSource>> Open(const std::string& dir,
                                                            const ExpertPackOptions& options) {
    MOERT_ASSIGN_OR_RETURN(PackManifest manifest, ReadManifest(dir, options.env));
    if (!options.source_identity.empty() && manifest.source_identity != options.source_identity) {
      return DataLoss("{}: made from checkpoint \"{}\", not from \"{}\"", dir,
                      manifest.source_identity, options.source_identity);
    }
    std::unique_ptr<ExpertPack> pack(new ExpertPack(dir, std::move(manifest)));
    MOERT_RETURN_IF_ERROR(pack->OpenFiles(options));
    MOERT_RETURN_IF_ERROR(pack->MakeLayouts());
    return pack;
  }

  const MoeModelSpec& model() const override { return manifest_.model; }
  const std::string& name() const override { return dir_; }
  int num_versions() const override { return manifest_.num_versions(); }
  absl::string_view version_name(int version) const override {
    return manifest_.versions[version].name;
  }
  const RecordLayout& layout(int layer, int expert, int version) const override {
    return layouts_[layout_of_[manifest_.RecordIndex(layer, expert, version)]];
  }

  absl::Status ReadRecord(int layer, int expert, int version,
                          absl::Span<std::byte> dst) const override;
  absl::StatusOr<LayerConstants> ReadConstants(int layer) const override;

 private:
  ExpertPack(std::string dir, PackManifest manifest)
      : dir_(std::move(dir)), manifest_(std::move(manifest)) {}
  absl::Status OpenFiles(const ExpertPackOptions& options);
  absl::Status MakeLayouts();
  absl::Status CheckKey(int layer, int expert, int version) const;

  const std::string dir_;
  const PackManifest manifest_;
  std::vector<std::unique_ptr<RandomAccessFile>> files_;
  std::unique_ptr<Checkpoint> constants_;
  std::deque<RecordLayout> layouts_;  // the distinct ones
  std::vector<uint16_t> layout_of_;   // by record
};

absl::Status ExpertPack::OpenFiles(const ExpertPackOptions& options) {
  const auto check_size = [](const RandomAccessFile& file, int64_t bytes) {
    if (file.size() == bytes) return absl::OkStatus();
    return DataLoss("{}: the file has {} bytes, {} says {}{}", file.path(), file.size(),
                    kManifestFile, bytes, file.size() < bytes ? " (truncated)" : "");
  };
  for (const PackFile& f : manifest_.files) {
    MOERT_ASSIGN_OR_RETURN(auto file, options.env->Open(dir_ + "/" + f.name,
                                                        options.direct_io ? FileAccess::kDirect
                                                                          : FileAccess::kBuffered));
    MOERT_RETURN_IF_ERROR(check_size(*file, f.bytes));
    files_.push_back(std::move(file));
  }
  MOERT_ASSIGN_OR_RETURN(constants_,
                         Checkpoint::Open(dir_ + "/" + manifest_.constants.name, options.env));
  return check_size(constants_->file(0), manifest_.constants.bytes);
}

absl::Status ExpertPack::MakeLayouts() {
  layout_of_.reserve(manifest_.records.size());
  using Shape = std::tuple<int64_t, int64_t, bool, bool>;
  std::vector<Shape> shapes;  // of layouts_: hidden, intermediate, gated, biases
  size_t last = 0;
  for (int l = 0; l < manifest_.model.num_layers(); ++l) {
    const MoeLayerSpec& layer = manifest_.model.layers[l];
    const Shape shape(layer.hidden, layer.intermediate, layer.activation.gated, layer.expert_bias);
    for (const PackVersion& version : manifest_.versions) {
      for (int e = 0; e < layer.num_experts; ++e) {
        const ExpertFormat& format = version.format(l, e);
        const auto matches = [&](size_t i) {
          return shapes[i] == shape && layouts_[i].format == format;
        };
        if (layouts_.empty() || !matches(last)) {
          last = 0;
          while (last < layouts_.size() && !matches(last)) ++last;
        }
        if (last == layouts_.size()) {
          if (last > UINT16_MAX) {
            return InvalidArgument("{}: more than {} distinct record layouts", dir_, UINT16_MAX);
          }
          MOERT_ASSIGN_OR_RETURN(RecordLayout layout, ExpertRecordLayout(layer, format));
          layouts_.push_back(layout);
          shapes.push_back(shape);
        }
        layout_of_.push_back(static_cast<uint16_t>(last));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ExpertPack::CheckKey(int layer, int expert, int version) const {
  if (layer >= 0 && layer < manifest_.model.num_layers() && expert >= 0 &&
      expert < manifest_.model.layers[layer].num_experts && version >= 0 &&
      version < manifest_.num_versions()) {
    return absl::OkStatus();
  }
  return InvalidArgument("{}: there is no layer {}, expert {}, version {}", dir_, layer, expert,
                         version);
}

absl::Status ExpertPack::ReadRecord(int layer, int expert, int version,
                                    absl::Span<std::byte> dst) const {
  MOERT_RETURN_IF_ERROR(CheckKey(layer, expert, version));
  const size_t index = manifest_.RecordIndex(layer, expert, version);
  const PackRecord& record = manifest_.records[index];
  const int64_t padded = RoundUp(record.bytes, kRecordAlignment);
  if (static_cast<int64_t>(dst.size()) < padded) {
    return InvalidArgument("{}: a record of {} bytes was given a buffer of {}", dir_, padded,
                           dst.size());
  }
  const RandomAccessFile& file = *files_[record.file];
  MOERT_RETURN_IF_ERROR(file.Read(record.offset, dst.subspan(0, padded)));
  // Checked at every read: a disk, a cable or a writer may damage data that was intact before.
  const uint64_t found = Hash64(dst.subspan(0, record.bytes));
  if (found != record.checksum) {
    return DataLoss(
        "{}: tensor \"{}\" (layer {}, expert {}, version {}) is damaged: its checksum is {:016x}, "
        "{} says {:016x}",
        file.path(), RecordTensorName(layer, expert, std::string(version_name(version))), layer,
        expert, version_name(version), found, kManifestFile, record.checksum);
  }
  return absl::OkStatus();
}

absl::StatusOr<LayerConstants> ExpertPack::ReadConstants(int layer) const {
  MOERT_RETURN_IF_ERROR(CheckKey(layer, 0, 0));
  const MoeLayerSpec& l = manifest_.model.layers[layer];
  const ConstantNames names(layer);
  try {
    LayerConstants c;
    Hasher64 hasher;
    const auto read_floats = [&](const std::string& tensor, std::initializer_list<int64_t> shape,
                                 std::vector<float>* out) -> absl::Status {
      MOERT_ASSIGN_OR_RETURN(*out, constants_->ReadF32(tensor, shape));
      hasher.Add(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(out->data()),
                                     out->size() * sizeof(float)));
      return absl::OkStatus();
    };
    if (!l.routing.external()) {
      MOERT_RETURN_IF_ERROR(read_floats(names.gate, {l.num_experts, l.hidden}, &c.gate));
    }
    if (l.routing.selection_bias) {
      MOERT_RETURN_IF_ERROR(read_floats(names.selection_bias, {l.num_experts}, &c.selection_bias));
    }
    if (l.shared_gate) {
      MOERT_RETURN_IF_ERROR(read_floats(names.shared_gate, {l.hidden}, &c.shared_gate));
    }
    if (l.routing.logit_bias) {
      MOERT_RETURN_IF_ERROR(read_floats(names.logit_bias, {l.num_experts}, &c.logit_bias));
    }
    if (l.routing.expert_scales) {
      MOERT_RETURN_IF_ERROR(read_floats(names.expert_scales, {l.num_experts}, &c.expert_scales));
    }
    if (l.routing.hash_vocab > 0) {
      MOERT_ASSIGN_OR_RETURN(
          c.hash_experts,
          constants_->ReadI32(names.hash_experts, {l.routing.hash_vocab, l.routing.top_k}));
      hasher.Add(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(c.hash_experts.data()),
                                     c.hash_experts.size() * sizeof(int32_t)));
    }
    if (l.shared_intermediate > 0) {
      MOERT_ASSIGN_OR_RETURN(c.shared_layout, SharedRecordLayout(l));
      MOERT_ASSIGN_OR_RETURN(const TensorInfo* t, constants_->Get(names.shared_expert));
      if (t->bytes != c.shared_layout.bytes) {
        return InvalidArgument("{}: tensor \"{}\": has {} bytes, expected {}", constants_->path(),
                               names.shared_expert, t->bytes, c.shared_layout.bytes);
      }
      c.shared_expert.resize(t->bytes);
      MOERT_RETURN_IF_ERROR(constants_->ReadBytes(*t, 0, absl::MakeSpan(c.shared_expert)));
      hasher.Add(absl::MakeConstSpan(c.shared_expert));
    }
    if (hasher.Finish() != manifest_.constants_checksums[layer]) {
      return DataLoss(
          "{}: the constants of layer {} (tensors \"layers.{}.*\") are damaged: their checksum "
          "differs from {}'s",
          constants_->path(), layer, layer, kManifestFile);
    }
    return c;
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("{}: out of memory for the constants of layer {}", dir_, layer);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertSource>> OpenExpertPack(const std::string& dir,
                                                             const ExpertPackOptions& options) {
  try {
    return ExpertPack::Open(dir, options);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("{}: out of memory while opening", dir);
  }
}

absl::StatusOr<std::unique_ptr<ExpertSource>> OpenExpertPack(const std::string& dir) try {
  return OpenExpertPack(dir, ExpertPackOptions());
} catch (...) {
  return ExceptionStatus("opening a pack");
}

}  // namespace moert
