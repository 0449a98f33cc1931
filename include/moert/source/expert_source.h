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
  std::vector<float> gate = {};            // [num_experts, hidden], fp32
  std::vector<float> selection_bias = {};  // [num_experts] or empty
  std::vector<float> shared_gate = {};     // [hidden] or empty
  std::vector<float> logit_bias = {};      // [num_experts] or empty
  std::vector<float> expert_scales = {};   // [num_experts] or empty
  std::vector<int32_t> hash_experts = {};  // [hash_vocab, top_k] or empty: distinct ones of a token
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

  /// Pieces that several threads may read at the same time, in place of ReadRecord: ReadPiece of
  /// each one, with the same `dst`. 1 where that is not faster.
  virtual int64_t num_pieces(int /*layer*/, int /*expert*/, int /*version*/) const { return 1; }
  virtual absl::Status ReadPiece(int layer, int expert, int version, int64_t /*piece*/,
                                 absl::Span<std::byte> dst) const {
    return ReadRecord(layer, expert, version, dst);
  }

  /// Where a record lies in page-locked host memory already, as it would be read: at a multiple of
  /// kRecordAlignment, for as long as the source lives. A device copies it from there, and no copy
  /// of it is kept. Null: it has to be read.
  virtual const std::byte* PinnedRecord(int /*layer*/, int /*expert*/, int /*version*/) const {
    return nullptr;
  }

  /// Where it lies in any memory of the host, likewise: a CPU multiplies it there.
  virtual const std::byte* HostRecord(int layer, int expert, int version) const {
    return PinnedRecord(layer, expert, version);
  }

  /// The same of one part of an opaque record (RecordLayout::parts), at the part's alignment. Parts
  /// may lie apart, where there is no HostRecord.
  virtual const std::byte* HostPart(int layer, int expert, int version, int part) const {
    const std::byte* const record = HostRecord(layer, expert, version);
    if (record == nullptr) return nullptr;
    return record + layout(layer, expert, version).parts[static_cast<size_t>(part)].offset;
  }

  /// Memory one ReadRecord call holds besides `dst`, bytes. Part of the budget, once an I/O thread.
  virtual int64_t scratch_bytes() const { return 0; }

  /// The product of opaque records on the CPU (OpaqueWeights::product), its errors with the
  /// source's name and the layer in front; null: there is none. Lives as long as the source. A
  /// source over another one has that one's.
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
  /// Through a pack in the cache folder, which is written on the first open, as large as the
  /// experts: streamed, atomic, rebuilt when its format version or the checkpoint changed. Experts
  /// are in the scheme that the file has them in, floats of any kind in bf16. Reads are one piece
  /// and checked. `log` hears of its size before it is written.
  kPack = 0,
  /// From the checkpoint itself, rearranged on the way: no second copy on the disk, nothing to wait
  /// for, reads of several pieces that have no checksums. The same records, bit for bit.
  kInPlace = 1,
  /// kPack if that pack is there already, else kInPlace: nothing is written.
  kPackIfThere = 2,
};

/// `cache_dir` empty: the user's cache folder, $XDG_CACHE_HOME/moert or ~/.cache/moert. `log`
/// receives a line that says what is made where, and its size; may be null.
struct OpenModelOptions {
  std::string cache_dir = {};
  /// Experts that the file has quantized become bf16, too.
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
