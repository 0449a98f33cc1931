#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "base/exception_status.h"
#include "base/status_macros.h"
#include "moert/offline/pack.h"
#include "pack/pack_manifest.h"

namespace moert {
namespace {

class LayoutSource final : public ExpertSource {
 public:
  LayoutSource(std::string name, MoeModelSpec model, std::vector<PackVersion> versions)
      : name_(std::move(name)), model_(std::move(model)), versions_(std::move(versions)) {}

  absl::Status Init() {
    layouts_.resize(versions_.size());
    for (size_t v = 0; v < versions_.size(); ++v) {
      for (const MoeLayerSpec& layer : model_.layers) {
        std::vector<RecordLayout>& layouts = layouts_[v].emplace_back();
        for (const ExpertFormat& format : versions_[v].formats) {
          MOERT_ASSIGN_OR_RETURN(const RecordLayout layout, ExpertRecordLayout(layer, format));
          layouts.push_back(layout);
        }
      }
    }
    return absl::OkStatus();
  }

  const MoeModelSpec& model() const override { return model_; }
  const std::string& name() const override { return name_; }
  int num_versions() const override { return static_cast<int>(versions_.size()); }
  absl::string_view version_name(int version) const override { return versions_[version].name; }
  const RecordLayout& layout(int layer, int expert, int version) const override {
    const PackVersion& v = versions_[version];
    const int format = v.assignment.empty() ? 0 : v.assignment[layer][expert];
    return layouts_[version][layer][format];
  }
  absl::Status ReadRecord(int, int, int, absl::Span<std::byte>) const override {
    return absl::FailedPreconditionError(name_ + ": known by its layouts only");
  }
  absl::StatusOr<LayerConstants> ReadConstants(int) const override {
    return absl::FailedPreconditionError(name_ + ": known by its layouts only");
  }

 private:
  const std::string name_;
  const MoeModelSpec model_;
  const std::vector<PackVersion> versions_;
  std::vector<std::vector<std::vector<RecordLayout>>> layouts_;  // [version][layer][format]
};

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertSource>> MakeLayoutSource(
    const std::string& name, const MoeModelSpec& model,
    const std::vector<PackVersion>& versions) try {
  auto source = std::make_unique<LayoutSource>(name, model, versions);
  MOERT_RETURN_IF_ERROR(source->Init());
  return source;
} catch (...) {
  return ExceptionStatus(name);
}

absl::StatusOr<VersionSize> SizeOf(const MoeModelSpec& model, const PackVersion& version) try {
  VersionSize size;
  for (int l = 0; l < model.num_layers(); ++l) {
    const MoeLayerSpec& layer = model.layers[l];
    for (int e = 0; e < layer.num_experts; ++e) {
      MOERT_ASSIGN_OR_RETURN(const RecordLayout layout,
                             ExpertRecordLayout(layer, version.format(l, e)));
      size.bytes += layout.bytes;
      size.held_bytes += RoundUp(layout.bytes, kRecordAlignment);
      for (const MatrixLayout* m : {&layout.gate, &layout.up, &layout.down}) {
        size.weights += m->rows * m->k;
        size.padded_weights += m->padded_rows * m->padded_k;
      }
    }
  }
  return size;
} catch (...) {
  return ExceptionStatus(version.name);
}

absl::StatusOr<PackInfo> ReadPackInfo(const std::string& dir, Env* env) try {
  MOERT_ASSIGN_OR_RETURN(PackManifest m, ReadManifest(dir, env));
  PackInfo info;
  info.model = std::move(m.model);
  info.versions = std::move(m.versions);
  info.quantizer_json = std::move(m.quantizer_json);
  info.source_identity = std::move(m.source_identity);
  info.num_files = static_cast<int>(m.files.size()) + 1;
  info.bytes = m.constants.bytes;
  for (const PackFile& file : m.files) info.bytes += file.bytes;
  return info;
} catch (...) {
  return ExceptionStatus(dir);
}

}  // namespace moert
