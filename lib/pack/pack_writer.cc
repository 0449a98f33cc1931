#include "pack/pack_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/checked_math.h"
#include "base/errors.h"
#include "base/hash64.h"
#include "base/status_macros.h"
#include "moert/tools/env.h"

namespace moert {
namespace {

template <typename T>
absl::Span<const std::byte> AsBytes(const std::vector<T>& v) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(v.data()), v.size() * sizeof(T));
}

absl::Status CheckSize(int layer, const char* what, size_t got, int64_t want) {
  if (static_cast<int64_t>(got) == want) return absl::OkStatus();
  return InvalidArgument("constants of layer {}: {} has {} entries, expected {}", layer, what, got,
                         want);
}

int FolderMode(const PackDescription& description) { return description.owner_only ? 0700 : 0777; }

absl::StatusOr<int64_t> SharedBytes(const MoeLayerSpec& l) {
  if (l.shared_intermediate == 0) return 0;
  MOERT_ASSIGN_OR_RETURN(const RecordLayout layout, SharedRecordLayout(l));
  return layout.bytes;
}

}  // namespace

ConstantNames::ConstantNames(int layer)
    : gate(fmt::format("layers.{}.gate", layer)),
      selection_bias(fmt::format("layers.{}.selection_bias", layer)),
      shared_gate(fmt::format("layers.{}.shared_gate", layer)),
      logit_bias(fmt::format("layers.{}.logit_bias", layer)),
      expert_scales(fmt::format("layers.{}.expert_scales", layer)),
      hash_experts(fmt::format("layers.{}.hash_experts", layer)),
      shared_expert(fmt::format("layers.{}.shared_expert", layer)) {}

absl::StatusOr<std::vector<TensorSpec>> ConstantTensors(const MoeModelSpec& model) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < model.num_layers(); ++i) {
    const MoeLayerSpec& l = model.layers[i];
    const ConstantNames names(i);
    if (!l.routing.external()) {
      tensors.push_back({names.gate, DType::kF32, {l.num_experts, l.hidden}});
    }
    if (l.routing.selection_bias) {
      tensors.push_back({names.selection_bias, DType::kF32, {l.num_experts}});
    }
    if (l.shared_gate) tensors.push_back({names.shared_gate, DType::kF32, {l.hidden}});
    const RoutingSpec& r = l.routing;
    if (r.logit_bias) tensors.push_back({names.logit_bias, DType::kF32, {l.num_experts}});
    if (r.expert_scales) tensors.push_back({names.expert_scales, DType::kF32, {l.num_experts}});
    if (r.hash_vocab > 0) {
      tensors.push_back({names.hash_experts, DType::kI32, {r.hash_vocab, r.top_k}});
    }
    MOERT_ASSIGN_OR_RETURN(const int64_t shared, SharedBytes(l));
    if (shared > 0) tensors.push_back({names.shared_expert, DType::kU8, {shared}});
  }
  return tensors;
}

TensorSpec RecordTensor(int layer, int expert, const std::string& version, int64_t bytes) {
  return {RecordTensorName(layer, expert, version), DType::kU8, {RoundUp(bytes, kRecordAlignment)}};
}

absl::StatusOr<std::unique_ptr<PackWriter>> PackWriter::Plan(PackDescription description) {
  MOERT_RETURN_IF_ERROR(description.model.Validate());
  if (description.versions.empty()) return absl::InvalidArgumentError("a pack needs a version");
  std::unique_ptr<PackWriter> w(new PackWriter);
  w->manifest_.model = std::move(description.model);
  w->manifest_.versions = std::move(description.versions);
  w->manifest_.quantizer_json = std::move(description.quantizer_json);
  w->manifest_.source_identity = std::move(description.source_identity);
  if (description.owner_only) w->file_mode_ = 0600;
  MOERT_RETURN_IF_ERROR(w->PlanFiles(description.max_file_bytes));
  MOERT_ASSIGN_OR_RETURN(w->constant_tensors_, ConstantTensors(w->manifest_.model));
  w->manifest_.constants.name = kConstantsFile;
  return w;
}

absl::StatusOr<std::unique_ptr<PackWriter>> PackWriter::Create(const std::string& dir,
                                                               PackDescription description) {
  const int mode = FolderMode(description);
  MOERT_ASSIGN_OR_RETURN(auto w, Plan(std::move(description)));
  MOERT_ASSIGN_OR_RETURN(w->atomic_, AtomicDirectory::Create(dir, mode));
  w->path_ = w->atomic_->path();
  MOERT_ASSIGN_OR_RETURN(w->constants_,
                         SafetensorsWriter::Create(w->path_ + "/" + kConstantsFile,
                                                   w->constant_tensors_, w->file_mode_));
  w->manifest_.constants.bytes = w->constants_->file_bytes();
  return w;
}

absl::StatusOr<std::unique_ptr<PackWriter>> PackWriter::CreateResumable(
    const std::string& dir, PackDescription description) {
  const int64_t max_file_bytes = description.max_file_bytes;
  const int mode = FolderMode(description);
  MOERT_ASSIGN_OR_RETURN(auto w, Plan(std::move(description)));
  // Hashes everything that determines the files' contents.
  Hasher64 job;
  job.Add(ManifestToJson(w->manifest_));
  job.Add(fmt::format("{}", max_file_bytes));
  MOERT_ASSIGN_OR_RETURN(w->partial_, PartialPack::Open(dir, job.Finish(), mode));
  w->path_ = w->partial_->pack_path();
  MOERT_RETURN_IF_ERROR(w->Resume());
  return w;
}

absl::StatusOr<RecordLayout> PackWriter::Layout(int layer, int expert, int version) const {
  const MoeLayerSpec& l = manifest_.model.layers[layer];
  return ExpertRecordLayout(l, manifest_.versions[version].format(layer, expert));
}

absl::Status PackWriter::PlanFiles(int64_t max_file_bytes) {
  manifest_.records.resize(manifest_.IndexRecords());
  int64_t file_bytes = 0;
  size_t index = 0;
  for (int l = 0; l < manifest_.model.num_layers(); ++l) {
    const int experts = manifest_.model.layers[l].num_experts;
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
            RecordTensor(l, e, manifest_.versions[v].name, layout.bytes));
        file_bytes += padded;
        total_bytes_ = *total;
        manifest_.records[index].bytes = layout.bytes;
      }
    }
  }
  return absl::OkStatus();
}

// The number of tensors of the first `layers` layers in the constants' file.
size_t PackWriter::NumConstantTensors(int layers) const {
  size_t count = 0;
  for (int i = 0; i < layers; ++i) {
    const MoeLayerSpec& l = manifest_.model.layers[i];
    const RoutingSpec& r = l.routing;
    for (const bool has : {!l.routing.external(), r.selection_bias, l.shared_gate, r.logit_bias,
                           r.expert_scales, r.hash_vocab > 0, l.shared_intermediate > 0}) {
      count += has ? 1 : 0;
    }
  }
  return count;
}

// Records the file that records_ writes, the next of planned_.
void PackWriter::PlaceRecords(const PlannedFile& plan) {
  const size_t file = manifest_.files.size();
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    manifest_.records[plan.first_record + i].file = static_cast<int>(file);
    manifest_.records[plan.first_record + i].offset = records_->offset(i);
  }
  manifest_.files.push_back({plan.name, records_->file_bytes()});
}

// Closes the record file, which is complete, and begins the next.
absl::Status PackWriter::NextFile() {
  if (records_ != nullptr) MOERT_RETURN_IF_ERROR(records_->Finish());
  records_.reset();
  const size_t file = manifest_.files.size();
  if (file == planned_.size()) return absl::OkStatus();
  const PlannedFile& plan = planned_[file];
  MOERT_ASSIGN_OR_RETURN(
      records_, SafetensorsWriter::Create(path_ + "/" + plan.name, plan.tensors, file_mode_));
  PlaceRecords(plan);
  return absl::OkStatus();
}

// Continues after the layers that the journal lists. Bytes written after them are dropped.
absl::Status PackWriter::Resume() {
  for (const PartialPack::DoneLayer& layer : partial_->done()) {
    const int index = next_constants_;
    if (index == manifest_.model.num_layers()) {
      return DataLoss("{}: the journal has too many layers", path_);
    }
    const size_t experts = static_cast<size_t>(manifest_.model.layers[index].num_experts);
    if (layer.records.size() != experts * manifest_.versions.size()) {
      return DataLoss("{}: the journal's layer {} has {} records", path_, index,
                      layer.records.size());
    }
    for (const uint64_t checksum : layer.records) {
      manifest_.records[next_record_++].checksum = checksum;
    }
    manifest_.constants_checksums.push_back(layer.constants);
    ++next_constants_;
  }
  const auto remove = [this](const std::string& name) {
    std::error_code ec;
    std::filesystem::remove(path_ + "/" + name, ec);
  };
  remove(kManifestFile);
  for (const PlannedFile& plan : planned_) {
    if (plan.first_record >= next_record_) {
      remove(plan.name);
      continue;
    }
    const size_t written = std::min(next_record_ - plan.first_record, plan.tensors.size());
    if (records_ != nullptr) MOERT_RETURN_IF_ERROR(records_->Finish());
    MOERT_ASSIGN_OR_RETURN(
        records_, SafetensorsWriter::Resume(path_ + "/" + plan.name, plan.tensors, written));
    PlaceRecords(plan);
  }
  const std::string constants = path_ + "/" + kConstantsFile;
  if (next_constants_ == 0) {
    remove(kConstantsFile);
    MOERT_ASSIGN_OR_RETURN(constants_,
                           SafetensorsWriter::Create(constants, constant_tensors_, file_mode_));
  } else {
    MOERT_ASSIGN_OR_RETURN(constants_,
                           SafetensorsWriter::Resume(constants, constant_tensors_,
                                                     NumConstantTensors(next_constants_)));
  }
  manifest_.constants.bytes = constants_->file_bytes();
  return absl::OkStatus();
}

int PackWriter::layers_done() const {
  return partial_ == nullptr ? 0 : static_cast<int>(partial_->done().size());
}

absl::Status PackWriter::CommitLayer(int layer) {
  const size_t first = layer == layers_done() && layer < manifest_.model.num_layers()
                           ? manifest_.RecordIndex(layer, 0, 0)
                           : 0;
  const size_t end = layer + 1 < manifest_.model.num_layers()
                         ? manifest_.RecordIndex(layer + 1, 0, 0)
                         : manifest_.records.size();
  if (partial_ == nullptr || layer != layers_done() || next_record_ != end ||
      next_constants_ != layer + 1) {
    return FailedPrecondition("layer {} is not complete", layer);
  }
  MOERT_RETURN_IF_ERROR(records_->Sync());
  MOERT_RETURN_IF_ERROR(constants_->Sync());
  PartialPack::DoneLayer done;
  for (size_t i = first; i < end; ++i) done.records.push_back(manifest_.records[i].checksum);
  done.constants = manifest_.constants_checksums.back();
  return partial_->Append(done);
}

absl::Status PackWriter::ReadRecord(int layer, int expert, int version,
                                    std::vector<std::byte>* record) {
  if (layer < 0 || layer >= layers_done()) {
    return FailedPrecondition("layer {} is not complete", layer);
  }
  const PackRecord& r = manifest_.records[manifest_.RecordIndex(layer, expert, version)];
  const std::string path = path_ + "/" + manifest_.files[r.file].name;
  MOERT_ASSIGN_OR_RETURN(const auto file, Env::Default()->Open(path, FileAccess::kBuffered));
  record->resize(r.bytes);
  MOERT_RETURN_IF_ERROR(file->Read(r.offset, absl::MakeSpan(*record)));
  if (Hash64(*record) != r.checksum) {
    return DataLoss(
        "{}: the record of layer {}, expert {}, version {} is damaged; remove the unfinished pack",
        path, layer, expert, version);
  }
  return absl::OkStatus();
}

absl::Status PackWriter::WriteRecord(int layer, int expert, int version,
                                     absl::Span<const std::byte> record) {
  const bool known = layer >= 0 && layer < manifest_.model.num_layers() && version >= 0 &&
                     version < manifest_.num_versions() && expert >= 0 &&
                     expert < manifest_.model.layers[layer].num_experts;
  if (!known || manifest_.RecordIndex(layer, expert, version) != next_record_) {
    return FailedPrecondition("record of layer {}, expert {}, version {} is out of order", layer,
                              expert, version);
  }
  PackRecord& entry = manifest_.records[next_record_];
  if (static_cast<int64_t>(record.size()) != entry.bytes) {
    return InvalidArgument("record of layer {}, expert {}, version {} has {} bytes, expected {}",
                           layer, expert, version, record.size(), entry.bytes);
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
    return FailedPrecondition("constants of layer {} are out of order", layer);
  }
  const MoeLayerSpec& l = manifest_.model.layers[layer];
  MOERT_ASSIGN_OR_RETURN(const int64_t shared, SharedBytes(l));
  MOERT_RETURN_IF_ERROR(
      CheckSize(layer, "gate", c.gate.size(), l.routing.external() ? 0 : l.num_experts * l.hidden));
  MOERT_RETURN_IF_ERROR(CheckSize(layer, "selection_bias", c.selection_bias.size(),
                                  l.routing.selection_bias ? l.num_experts : 0));
  MOERT_RETURN_IF_ERROR(
      CheckSize(layer, "shared_gate", c.shared_gate.size(), l.shared_gate ? l.hidden : 0));
  const RoutingSpec& r = l.routing;
  MOERT_RETURN_IF_ERROR(
      CheckSize(layer, "logit_bias", c.logit_bias.size(), r.logit_bias ? l.num_experts : 0));
  MOERT_RETURN_IF_ERROR(CheckSize(layer, "expert_scales", c.expert_scales.size(),
                                  r.expert_scales ? l.num_experts : 0));
  MOERT_RETURN_IF_ERROR(
      CheckSize(layer, "hash_experts", c.hash_experts.size(), r.hash_vocab * r.top_k));
  MOERT_RETURN_IF_ERROR(CheckSize(layer, "shared_expert", c.shared_expert.size(), shared));
  Hasher64 hasher;
  for (const absl::Span<const std::byte> part :
       {AsBytes(c.gate), AsBytes(c.selection_bias), AsBytes(c.shared_gate), AsBytes(c.logit_bias),
        AsBytes(c.expert_scales), AsBytes(c.hash_experts), absl::MakeConstSpan(c.shared_expert)}) {
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
    return FailedPrecondition(
        "the pack is not complete: {} of {} records and the constants of {} of {} layers written",
        next_record_, manifest_.records.size(), next_constants_, manifest_.model.num_layers());
  }
  MOERT_RETURN_IF_ERROR(NextFile());
  MOERT_RETURN_IF_ERROR(constants_->Finish());
  MOERT_ASSIGN_OR_RETURN(const auto file,
                         FileWriter::Create(path_ + "/" + kManifestFile, file_mode_));
  MOERT_RETURN_IF_ERROR(file->Append(ManifestToJson(manifest_)));
  MOERT_RETURN_IF_ERROR(file->Close());
  return partial_ != nullptr ? partial_->Commit() : atomic_->Commit();
}

}  // namespace moert
