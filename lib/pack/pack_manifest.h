// moert.json: the contents of an expert pack and their places. docs/reference/pack.md describes the
// fields.
#ifndef MOERT_LIB_PACK_PACK_MANIFEST_H_
#define MOERT_LIB_PACK_PACK_MANIFEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "moert/model.h"
#include "moert/offline/pack.h"
#include "moert/scheme.h"
#include "moert/tools/env.h"

namespace moert {

inline constexpr char kConstantsFile[] = "constants.safetensors";

struct PackFile {
  std::string name;
  int64_t bytes = 0;
};

struct PackRecord {
  int file = 0;
  int64_t offset = 0;     // from the start of the file, a multiple of kRecordAlignment
  int64_t bytes = 0;      // without the padding up to the next multiple
  uint64_t checksum = 0;  // Hash64 of those bytes
};

struct PackManifest {
  MoeModelSpec model;
  std::vector<PackVersion> versions;  // most bits first
  std::string quantizer_json = "{}";  // an object: method and settings, for people and reports
  std::string source_identity;        // of the checkpoint it was made from; may be empty
  std::vector<PackFile> files;
  PackFile constants;
  std::vector<uint64_t> constants_checksums;  // by layer: its tensors' bytes in file order
  std::vector<PackRecord> records;            // by RecordIndex

  int num_versions() const { return static_cast<int>(versions.size()); }
  /// Layers outermost, then versions, then experts: also the order in the files.
  size_t RecordIndex(int layer, int expert, int version) const {
    const size_t experts = static_cast<size_t>(model.layers[layer].num_experts);
    return first_record[layer] + static_cast<size_t>(version) * experts +
           static_cast<size_t>(expert);
  }
  /// Fills first_record and returns the number of records; model and versions must be set.
  size_t IndexRecords();
  std::vector<size_t> first_record;
};

/// "layers.3.experts.17.bf16"
std::string RecordTensorName(int layer, int expert, const std::string& version);

/// The text of moert.json.
std::string ManifestToJson(const PackManifest& manifest);

/// Reads and checks `dir`/moert.json: legal model, versions and formats; one record per expert and
/// version, aligned, with the size of its layout, and inside its file as the manifest describes it.
absl::StatusOr<PackManifest> ReadManifest(const std::string& dir, Env* env);

/// A PackVersion as JSON, for moert.json and plans.
void WriteVersion(const PackVersion& version, JsonWriter* out);

/// Reads names, formats and one legal format index per expert of `model`. `source` begins the
/// messages.
absl::StatusOr<PackVersion> VersionFromJson(JsonValue object, const MoeModelSpec& model,
                                            const std::string& source);

}  // namespace moert

#endif  // MOERT_LIB_PACK_PACK_MANIFEST_H_
