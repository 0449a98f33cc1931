// Experts that have sizes and no bytes.
#include "moert/tools/trace.h"

namespace moert {
namespace {

class SizesSource final : public ExpertSource {
 public:
  explicit SizesSource(const TraceHeader& header) : model_(header.model), name_(header.source) {
    for (const TraceVersion& version : header.versions) {
      version_names_.push_back(version.name);
      auto& layers = layouts_.emplace_back();
      for (const std::vector<int64_t>& bytes : version.bytes) {
        std::vector<RecordLayout>& layouts = layers.emplace_back(bytes.size());
        for (size_t e = 0; e < bytes.size(); ++e) layouts[e].bytes = bytes[e];
      }
    }
  }

  const MoeModelSpec& model() const override { return model_; }
  const std::string& name() const override { return name_; }
  int num_versions() const override { return static_cast<int>(version_names_.size()); }
  absl::string_view version_name(int version) const override { return version_names_[version]; }
  const RecordLayout& layout(int layer, int expert, int version) const override {
    return layouts_[version][layer][expert];
  }
  absl::Status ReadRecord(int, int, int, absl::Span<std::byte>) const override {
    return absl::OkStatus();
  }
  absl::StatusOr<LayerConstants> ReadConstants(int) const override {
    return absl::FailedPreconditionError(name_ + ": known by its sizes only");
  }

 private:
  const MoeModelSpec model_;
  const std::string name_;
  std::vector<std::string> version_names_;
  std::vector<std::vector<std::vector<RecordLayout>>> layouts_;  // [version][layer][expert]
};

}  // namespace

std::shared_ptr<const ExpertSource> MakeSizesSource(const TraceHeader& header) {
  return std::make_shared<SizesSource>(header);
}

}  // namespace moert
