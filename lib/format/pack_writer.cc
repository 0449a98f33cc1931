#include "format/pack_writer.h"

#include <fmt/format.h>

#include <utility>

#include "base/checked_math.h"
#include "base/hash64.h"
#include "base/status_macros.h"

namespace moert {
namespace {

absl::Span<const std::byte> AsBytes(const std::vector<float>& v) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(v.data()),
                             v.size() * sizeof(float));
}

absl::Status CheckSize(int layer, const char* what, size_t got, int64_t want) {
  if (static_cast<int64_t>(got) == want) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("constants of layer {}: {} has {} entries, expected {}", layer, what, got, want));
}

absl::StatusOr<int64_t> SharedBytes(const MoeLayerSpec& l) {
  if (l.shared_intermediate == 0) return 0;
  MOERT_ASSIGN_OR_RETURN(
      const RecordLayout layout,
      MakeRecordLayout(l.hidden, l.shared_intermediate, ExpertFormat::Uniform(Scheme{})));
  return layout.bytes;
}

}  // namespace

ConstantNames::ConstantNames(int layer)
    : gate(fmt::format("layers.{}.gate", layer)),
      selection_bias(fmt::format("layers.{}.selection_bias", layer)),
      shared_gate(fmt::format("layers.{}.shared_gate", layer)),
      shared_expert(fmt::format("layers.{}.shared_expert", layer)) {}

absl::StatusOr<std::unique_ptr<PackWriter>> PackWriter::Create(const std::string& dir,
                                                               PackDescription description) {
  MOERT_RETURN_IF_ERROR(description.model.Validate());
  if (description.versions.empty()) return absl::InvalidArgumentError("a pack needs a version");
  std::unique_ptr<PackWriter> w(new PackWriter);
  w->manifest_.model = std::move(description.model);
  w->manifest_.versions = std::move(description.versions);
  w->manifest_.quantizer_json = std::move(description.quantizer_json);
  w->manifest_.source_identity = std::move(description.source_identity);
  MOERT_RETURN_IF_ERROR(w->PlanFiles(description.max_file_bytes));
  MOERT_ASSIGN_OR_RETURN(w->dir_, AtomicDirectory::Create(dir));
  MOERT_RETURN_IF_ERROR(w->OpenConstants());
  return w;
}

absl::StatusOr<RecordLayout> PackWriter::Layout(int layer, int expert, int version) const {
  const MoeLayerSpec& l = manifest_.model.layers[static_cast<size_t>(layer)];
  return MakeRecordLayout(l.hidden, l.intermediate,
                          manifest_.versions[static_cast<size_t>(version)].format(layer, expert));
}

absl::Status PackWriter::PlanFiles(int64_t max_file_bytes) {
  manifest_.records.resize(manifest_.IndexRecords());
  int64_t file_bytes = 0;
  size_t index = 0;
  for (int l = 0; l < manifest_.model.num_layers(); ++l) {
    const int experts = manifest_.model.layers[static_cast<size_t>(l)].num_experts;
    for (int v = 0; v < manifest_.num_versions(); ++v) {
      for (int e = 0; e < experts; ++e, ++index) {
        MOERT_ASSIGN_OR_RETURN(const RecordLayout layout, Layout(l, e, v));
        const int64_t padded = RoundUp(layout.bytes, kRecordAlignment);
        const auto total = CheckedAdd(total_bytes_, padded);
        if (!total) return absl::InvalidArgumentError("the pack's size overflows");
        if (planned_.empty() || file_bytes > max_file_bytes - padded) {
          planned_.push_back(
              {fmt::format("experts-{:05}.safetensors", planned_.size()), {}, index});
          file_bytes = 0;
        }
        planned_.back().tensors.push_back(
            {RecordTensorName(l, e, manifest_.versions[static_cast<size_t>(v)].name),
             DType::kU8,
             {padded}});
        file_bytes += padded;
        total_bytes_ = *total;
        manifest_.records[index].bytes = layout.bytes;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status PackWriter::OpenConstants() {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < manifest_.model.num_layers(); ++i) {
    const MoeLayerSpec& l = manifest_.model.layers[static_cast<size_t>(i)];
    const ConstantNames names(i);
    tensors.push_back({names.gate, DType::kF32, {l.num_experts, l.hidden}});
    if (l.routing.selection_bias) {
      tensors.push_back({names.selection_bias, DType::kF32, {l.num_experts}});
    }
    if (l.shared_gate) tensors.push_back({names.shared_gate, DType::kF32, {l.hidden}});
    MOERT_ASSIGN_OR_RETURN(const int64_t shared, SharedBytes(l));
    if (shared > 0) tensors.push_back({names.shared_expert, DType::kU8, {shared}});
  }
  manifest_.constants.name = kConstantsFile;
  MOERT_ASSIGN_OR_RETURN(constants_, SafetensorsWriter::Create(dir_->path() + "/" + kConstantsFile,
                                                               std::move(tensors)));
  manifest_.constants.bytes = constants_->file_bytes();
  return absl::OkStatus();
}

// Closes the record file that is complete and begins the next.
absl::Status PackWriter::NextFile() {
  if (records_ != nullptr) MOERT_RETURN_IF_ERROR(records_->Finish());
  records_.reset();
  const size_t file = manifest_.files.size();
  if (file == planned_.size()) return absl::OkStatus();
  PlannedFile& plan = planned_[file];
  const size_t count = plan.tensors.size();
  MOERT_ASSIGN_OR_RETURN(
      records_, SafetensorsWriter::Create(dir_->path() + "/" + plan.name, std::move(plan.tensors)));
  for (size_t i = 0; i < count; ++i) {
    manifest_.records[plan.first_record + i].file = static_cast<int>(file);
    manifest_.records[plan.first_record + i].offset = records_->offset(i);
  }
  manifest_.files.push_back({plan.name, records_->file_bytes()});
  return absl::OkStatus();
}

absl::Status PackWriter::WriteRecord(int layer, int expert, int version,
                                     absl::Span<const std::byte> record) {
  const bool known = layer >= 0 && layer < manifest_.model.num_layers() && version >= 0 &&
                     version < manifest_.num_versions() && expert >= 0 &&
                     expert < manifest_.model.layers[static_cast<size_t>(layer)].num_experts;
  if (!known || manifest_.RecordIndex(layer, expert, version) != next_record_) {
    return absl::FailedPreconditionError(fmt::format(
        "record of layer {}, expert {}, version {} is out of order", layer, expert, version));
  }
  PackRecord& entry = manifest_.records[next_record_];
  if (static_cast<int64_t>(record.size()) != entry.bytes) {
    return absl::InvalidArgumentError(
        fmt::format("record of layer {}, expert {}, version {} has {} bytes, expected {}", layer,
                    expert, version, record.size(), entry.bytes));
  }
  const size_t file = manifest_.files.size();
  if (file < planned_.size() && planned_[file].first_record == next_record_) {
    MOERT_RETURN_IF_ERROR(NextFile());
  }
  entry.checksum = Hash64(record);
  MOERT_RETURN_IF_ERROR(records_->Append(record));
  ++next_record_;
  return absl::OkStatus();
}

absl::Status PackWriter::WriteConstants(int layer, const LayerConstants& c) {
  if (layer != next_constants_ || layer >= manifest_.model.num_layers()) {
    return absl::FailedPreconditionError(
        fmt::format("constants of layer {} are out of order", layer));
  }
  const MoeLayerSpec& l = manifest_.model.layers[static_cast<size_t>(layer)];
  MOERT_ASSIGN_OR_RETURN(const int64_t shared, SharedBytes(l));
  MOERT_RETURN_IF_ERROR(CheckSize(layer, "gate", c.gate.size(), l.num_experts * l.hidden));
  MOERT_RETURN_IF_ERROR(CheckSize(layer, "selection_bias", c.selection_bias.size(),
                                  l.routing.selection_bias ? l.num_experts : 0));
  MOERT_RETURN_IF_ERROR(
      CheckSize(layer, "shared_gate", c.shared_gate.size(), l.shared_gate ? l.hidden : 0));
  MOERT_RETURN_IF_ERROR(CheckSize(layer, "shared_expert", c.shared_expert.size(), shared));
  Hasher64 hasher;
  for (const absl::Span<const std::byte> part :
       {AsBytes(c.gate), AsBytes(c.selection_bias), AsBytes(c.shared_gate),
        absl::MakeConstSpan(c.shared_expert)}) {
    if (part.empty()) continue;
    hasher.Add(part);
    MOERT_RETURN_IF_ERROR(constants_->Append(part));
  }
  manifest_.constants_checksums.push_back(hasher.Finish());
  ++next_constants_;
  return absl::OkStatus();
}

absl::Status PackWriter::Finish() {
  if (next_record_ != manifest_.records.size() || next_constants_ != manifest_.model.num_layers()) {
    return absl::FailedPreconditionError(fmt::format(
        "the pack is not complete: {} of {} records and the constants of {} of {} layers written",
        next_record_, manifest_.records.size(), next_constants_, manifest_.model.num_layers()));
  }
  MOERT_RETURN_IF_ERROR(NextFile());
  MOERT_RETURN_IF_ERROR(constants_->Finish());
  MOERT_ASSIGN_OR_RETURN(const auto file, FileWriter::Create(dir_->path() + "/" + kManifestFile));
  MOERT_RETURN_IF_ERROR(file->Append(ManifestToJson(manifest_)));
  MOERT_RETURN_IF_ERROR(file->Close());
  return dir_->Commit();
}

}  // namespace moert
