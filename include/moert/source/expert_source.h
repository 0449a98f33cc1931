// Where expert bytes come from: an expert pack, an HF checkpoint through its cached pack, memory,
// or the host's own read callback.
#ifndef MOERT_SOURCE_EXPERT_SOURCE_H_
#define MOERT_SOURCE_EXPERT_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/model.h"
#include "moert/scheme.h"

namespace moert {

struct OpaqueProduct;

/// The parts of a layer that always stay in the fast tier (the "fixed" part of a budget).
struct LayerConstants {
  std::vector<float> gate = {};               // [num_experts, hidden], fp32
  std::vector<float> selection_bias = {};     // [num_experts] or empty
  std::vector<float> shared_gate = {};        // [hidden] or empty
  std::vector<float> logit_bias = {};         // [num_experts] or empty
  std::vector<float> expert_scales = {};      // [num_experts] or empty
  std::vector<int32_t> hash_experts = {};     // [hash_vocab, top_k] or empty: each token's distinct
                                              // experts
  std::vector<std::byte> shared_expert = {};  // a bf16 record (shared_layout) or empty
  RecordLayout shared_layout = {};
};

/// Every expert exists in `num_versions()` stored versions. Version 0 is the one with the most
/// bits. Thread-safe after construction: ReadRecord is called from I/O threads, concurrently.
class ExpertSource {
 public:
  virtual ~ExpertSource() = default;

  virtual const MoeModelSpec& model() const = 0;
  /// A name for messages and reports: the directory or file.
  virtual const std::string& name() const = 0;

  virtual int num_versions() const = 0;
  /// A short name of a version: its scheme ("w4a16_g128"), or its plan's name if mixed.
  virtual absl::string_view version_name(int version) const = 0;
  /// Lives as long as the source.
  virtual const RecordLayout& layout(int layer, int expert, int version) const = 0;

  /// Reads one whole record. `dst` is kRecordAlignment-aligned and at least
  /// RoundUp(layout.bytes, kRecordAlignment) long; bytes past layout.bytes are unspecified.
  /// Blocking. Every read verifies the record's checksum where the source stores one.
  virtual absl::Status ReadRecord(int layer, int expert, int version,
                                  absl::Span<std::byte> dst) const = 0;

  /// The number of pieces of a record that several threads may read concurrently by ReadPiece, all
  /// with the same `dst`, in place of one ReadRecord. 1 if that is not faster.
  virtual int64_t num_pieces(int /*layer*/, int /*expert*/, int /*version*/) const { return 1; }
  virtual absl::Status ReadPiece(int layer, int expert, int version, int64_t /*piece*/,
                                 absl::Span<std::byte> dst) const {
    return ReadRecord(layer, expert, version, dst);
  }

  /// The address of a record that lies in page-locked host memory already, byte for byte as
  /// ReadRecord would give it: a multiple of kRecordAlignment, valid for the source's life. A
  /// device copies from there, and the library keeps no copy. Null: the record has to be read.
  virtual const std::byte* PinnedRecord(int /*layer*/, int /*expert*/, int /*version*/) const {
    return nullptr;
  }

  /// Likewise the address of a record in any host memory: a CPU multiplies it in place.
  virtual const std::byte* HostRecord(int layer, int expert, int version) const {
    return PinnedRecord(layer, expert, version);
  }

  /// Likewise for one part of an opaque record (RecordLayout::parts), at the part's alignment.
  /// Parts may lie apart even where HostRecord is null.
  virtual const std::byte* HostPart(int layer, int expert, int version, int part) const {
    const std::byte* const record = HostRecord(layer, expert, version);
    if (record == nullptr) return nullptr;
    return record + layout(layer, expert, version).parts[static_cast<size_t>(part)].offset;
  }

  /// Bytes that one ReadRecord call holds besides `dst`. The budget counts them once per I/O
  /// thread.
  virtual int64_t scratch_bytes() const { return 0; }

  /// The product of opaque records on the CPU (OpaqueWeights::product), with the source's name and
  /// the layer in front of its errors; null: none. Valid for the source's life. A source that wraps
  /// another one returns that one's.
  virtual const std::function<absl::Status(const OpaqueProduct&)>* product() const {
    return nullptr;
  }

  /// Reads gate, biases and the shared expert of a layer.
  virtual absl::StatusOr<LayerConstants> ReadConstants(int layer) const = 0;
};

/// Opens an expert pack directory (moert.json + experts-NNNNN.safetensors).
absl::StatusOr<std::unique_ptr<ExpertSource>> OpenExpertPack(const std::string& dir);

/// How the experts of a checkpoint are read.
enum class OpenMode : int32_t {
  /// From a pack in the cache folder, which the first open writes and which is as large as the
  /// experts: streamed, atomic, rebuilt when its format version or the checkpoint changed. Experts
  /// keep the scheme of the checkpoint; floating-point ones become bf16. A record is read in one
  /// piece and its checksum verified. `log` receives the pack's size before it is written.
  kPack = 0,
  /// From the checkpoint itself, rearranged while reading: no second copy on disk and nothing to
  /// wait for; a record is read in several pieces without checksums. Records are the same, bit for
  /// bit.
  kInPlace = 1,
  /// kPack if that pack exists already, else kInPlace: nothing is written.
  kPackIfThere = 2,
};

/// `cache_dir` empty: the user's cache folder, $XDG_CACHE_HOME/moert or ~/.cache/moert. `log`
/// receives a line that says which file is made where, and its size; may be null.
struct OpenModelOptions {
  std::string cache_dir = {};
  /// Experts that are quantized in the checkpoint become bf16, too.
  bool widen = false;
  void (*log)(void* user, absl::string_view line) = nullptr;
  void (*progress)(void* user, int64_t done, int64_t total) = nullptr;
  void* user = nullptr;
  OpenMode mode = OpenMode::kPackIfThere;
};
/// Opens an HF checkpoint directory.
absl::StatusOr<std::unique_ptr<ExpertSource>> OpenModel(const std::string& model_dir,
                                                        const OpenModelOptions& options);

}  // namespace moert

#endif  // MOERT_SOURCE_EXPERT_SOURCE_H_
