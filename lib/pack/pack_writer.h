// Writing an expert pack as a stream, so that no more than one record need be in memory.
#ifndef MOERT_LIB_PACK_PACK_WRITER_H_
#define MOERT_LIB_PACK_PACK_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/safetensors_writer.h"
#include "moert/source/expert_source.h"
#include "pack/pack_manifest.h"
#include "pack/partial_pack.h"

namespace moert {

struct PackDescription {
  MoeModelSpec model;
  std::vector<PackVersion> versions;  // most bits first
  std::string quantizer_json = "{}";
  std::string source_identity;
  /// A file is closed and the next one begun before it would exceed this; a file has at least one
  /// record.
  int64_t max_file_bytes = int64_t{4} << 30;
  /// Only the owner may read the pack: folder 0700, files 0600. Else as the umask says.
  bool owner_only = false;
};

/// Nothing appears at the final path before Finish. Not thread-safe.
class PackWriter {
 public:
  /// `dir` must not exist; its parent must. A writer that is destroyed early removes what it wrote.
  static absl::StatusOr<std::unique_ptr<PackWriter>> Create(const std::string& dir,
                                                            PackDescription description);
  /// A writer that dies or is destroyed early leaves `dir`.partial with the layers that CommitLayer
  /// completed; the next writer with the same description continues after them. One process at a
  /// time.
  static absl::StatusOr<std::unique_ptr<PackWriter>> CreateResumable(const std::string& dir,
                                                                     PackDescription description);

  /// The layout that a record must have.
  absl::StatusOr<RecordLayout> Layout(int layer, int expert, int version) const;
  /// Bytes of all record files together.
  int64_t total_bytes() const { return total_bytes_; }

  /// Records come in file order: layers outermost, then versions, then experts. `record` has
  /// exactly layout.bytes bytes.
  absl::Status WriteRecord(int layer, int expert, int version, absl::Span<const std::byte> record);
  /// In ascending order of layers, any time between Create and Finish.
  absl::Status WriteConstants(int layer, const LayerConstants& constants);
  /// Makes layer durable, once its records and constants are written. CreateResumable only.
  absl::Status CommitLayer(int layer);
  /// Layers that are complete, counting those of earlier writers.
  int layers_done() const;
  /// Reads a record of a complete layer back and verifies its checksum. CreateResumable only.
  absl::Status ReadRecord(int layer, int expert, int version, std::vector<std::byte>* record);
  /// All records and constants must have been written. AlreadyExists if `dir` was made meanwhile.
  absl::Status Finish();

 private:
  struct PlannedFile {
    std::string name;
    std::vector<TensorSpec> tensors;
    size_t first_record = 0;
  };
  PackWriter() = default;
  static absl::StatusOr<std::unique_ptr<PackWriter>> Plan(PackDescription description);
  absl::Status PlanFiles(int64_t max_file_bytes);
  absl::Status NextFile();
  absl::Status Resume();
  void PlaceRecords(const PlannedFile& plan);
  size_t NumConstantTensors(int layers) const;

  int file_mode_ = 0644;
  PackManifest manifest_;
  std::string path_;  // where files are written
  std::unique_ptr<AtomicDirectory> atomic_;
  std::unique_ptr<PartialPack> partial_;
  std::vector<TensorSpec> constant_tensors_;
  std::vector<PlannedFile> planned_;
  std::unique_ptr<SafetensorsWriter> records_;
  std::unique_ptr<SafetensorsWriter> constants_;
  size_t next_record_ = 0;
  int next_constants_ = 0;
  int64_t total_bytes_ = 0;
};

/// The tensors of constants.safetensors.
absl::StatusOr<std::vector<TensorSpec>> ConstantTensors(const MoeModelSpec& model);
/// The tensor of one record, its padding included.
TensorSpec RecordTensor(int layer, int expert, const std::string& version, int64_t bytes);

/// Names of the constants' tensors of a layer.
struct ConstantNames {
  explicit ConstantNames(int layer);
  std::string gate, selection_bias, shared_gate, logit_bias, expert_scales, hash_experts,
      shared_expert;
};

}  // namespace moert

#endif  // MOERT_LIB_PACK_PACK_WRITER_H_
