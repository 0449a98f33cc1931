// Expert packs as files: their contents, and whether every byte is intact. Experts are read from a
// pack through OpenExpertPack (moert/source/expert_source.h) and written by RunQuantizeJob
// (moert/offline/quantize.h). docs/reference/pack.md describes the format.
#ifndef MOERT_OFFLINE_PACK_H_
#define MOERT_OFFLINE_PACK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/model.h"
#include "moert/scheme.h"
#include "moert/source/expert_source.h"
#include "moert/thread_pool.h"
#include "moert/tools/env.h"

namespace moert {

inline constexpr int kPackFormatVersion = 1;
/// A directory that has this file is an expert pack.
inline constexpr char kManifestFile[] = "moert.json";

/// One stored version of every expert.
struct PackVersion {
  std::string name = {};
  std::vector<ExpertFormat> formats = {};  // the distinct ones
  /// [MoE layer][expert] -> index into formats; empty: formats[0] everywhere.
  std::vector<std::vector<int>> assignment = {};

  int format_index(int layer, int expert) const {
    if (assignment.empty()) return 0;
    return assignment[layer][expert];
  }
  const ExpertFormat& format(int layer, int expert) const {
    return formats[format_index(layer, expert)];
  }
  /// Returns the index of a format, which is added if it is new.
  int AddFormat(const ExpertFormat& format) {
    size_t i = 0;
    while (i < formats.size() && !(formats[i] == format)) ++i;
    if (i == formats.size()) formats.push_back(format);
    return static_cast<int>(i);
  }
  static PackVersion Uniform(const Scheme& s, bool hadamard = false) {
    return {s.Name(), {ExpertFormat::Uniform(s, hadamard)}, {}};
  }
};

/// The manifest of a pack (moert.json).
struct PackInfo {
  MoeModelSpec model = {};
  std::vector<PackVersion> versions = {};  // most bits first
  std::string quantizer_json = "{}";       // an object: method and settings, for people and reports
  std::string source_identity = {};        // of the checkpoint it was made from; may be empty
  int num_files = 0;                       // beside moert.json
  int64_t bytes = 0;                       // of these files
};

/// Reads and checks `dir`/moert.json. Opens no other file.
absl::StatusOr<PackInfo> ReadPackInfo(const std::string& dir, Env* env = Env::Default());

/// The size of all records of a version, and their contents.
struct VersionSize {
  int64_t bytes = 0;
  int64_t weights = 0;
  int64_t padded_weights = 0;
  /// Bytes in a pack and in memory: each record fills blocks of kRecordAlignment bytes.
  int64_t held_bytes = 0;

  double stored_bits() const {
    return 8.0 * static_cast<double>(bytes) / static_cast<double>(weights);
  }
  /// Share of the stored weights that are padding.
  double padding() const {
    return 1.0 - static_cast<double>(weights) / static_cast<double>(padded_weights);
  }
};
absl::StatusOr<VersionSize> SizeOf(const MoeModelSpec& model, const PackVersion& version);

/// A source that knows the layouts of these versions and has no bytes: for Engine::Plan.
absl::StatusOr<std::unique_ptr<ExpertSource>> MakeLayoutSource(
    const std::string& name, const MoeModelSpec& model, const std::vector<PackVersion>& versions);

struct PackVerification {
  int64_t records = 0;
  int64_t bytes = 0;                     // of all record files and constants
  std::vector<std::string> damage = {};  // what is wrong, one line each, naming file and tensor
};

/// Reads the whole pack: the headers, records and padding of the record files and the constants are
/// compared with what the manifest says. An error only where the pack cannot be opened at all (its
/// manifest is damaged, a file is missing or of another size); all other damage is listed.
/// `progress`, if any, is called from this thread.
absl::StatusOr<PackVerification> VerifyPack(
    const std::string& dir, Env* env, ThreadPool* pool,
    const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace moert

#endif  // MOERT_OFFLINE_PACK_H_
