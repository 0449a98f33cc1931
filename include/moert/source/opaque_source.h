// A source of opaque records: bytes of an expert that the host's own kernels read, in any format
// (the gate, up and down slices of a GGUF expert, say). The library stores, moves, prefetches and
// counts them as it does its own; the product is the host's (Engine::Fetch, ExpertStore).
//
//   MoeModelSpec model{.layers = {layer}};    // routing of kind kExternal: the host routes
//   OpaqueWeights weights;
//   weights.layers = {{gate, up, down}};      // of each layer, where these lie: OpaquePart
//   auto source = MakeOpaqueSource("model.gguf", model, std::move(weights));
//
// A record holds its parts one behind the other; layers may differ in their sizes.
#ifndef MOERT_SOURCE_OPAQUE_SOURCE_H_
#define MOERT_SOURCE_OPAQUE_SOURCE_H_

#include <array>
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
#include "moert/source/expert_source.h"
#include "moert/source/host_source.h"
#include "moert/thread_pool.h"

namespace moert {

/// Parts of one record, at most.
inline constexpr int kMaxRecordParts = 8;

/// One part of every expert of a layer: how large it is and where it lies. In memory, in a file, in
/// both, or (neither is set) wherever OpaqueWeights::read takes it from.
struct OpaquePart {
  int64_t bytes = 0;      // of one expert's
  int64_t alignment = 1;  // of its address in a slot: a power of two, at most kRecordAlignment
  /// Slots are a multiple of this many bytes apart, for kernels that count strides in blocks of
  /// their format. At most kRecordAlignment; the common multiple of all parts of a layer and
  /// kRecordAlignment is at most 2^40.
  int64_t stride_multiple = 1;
  /// Expert e's bytes begin at memory + offset + e * stride, or at offset + e * stride of a file.
  /// Memory is borrowed for the life of the source: a mapped file will do. With `file` it is that
  /// file's mapping from its first byte on, and transfers read the file. A product on the CPU reads
  /// memory in place if it has the alignment; pages that are not in RAM are faulted in during the
  /// product, as in a host that maps its weights. A mapped file must not shrink.
  const void* memory = nullptr;
  int file = -1;       // index into OpaqueWeights::files
  int64_t offset = 0;  // of expert 0, bytes
  int64_t stride = 0;  // bytes from expert to expert, at least `bytes`; 0: `bytes`
  int64_t zeros = 0;   // zero bytes after the part in a slot, for kernels that read past its end
};

/// Asks for one part of one expert: all of its `bytes` into `dst`.
struct OpaqueRead {
  int layer = 0;
  int expert = 0;
  int part = 0;
  int64_t bytes = 0;
  void* dst = nullptr;
};

/// A product over opaque records on the CPU: the part of a layer call that the CPU computes while
/// the device computes the rest. A pair is a token and one of its experts; pairs are grouped by
/// expert.
struct OpaqueProduct {
  struct Expert {
    int expert = 0;
    int64_t pairs = 0;                                         // that want it, at least 1
    std::array<const std::byte*, kMaxRecordParts> parts = {};  // in RAM, or OpaquePart::memory
  };

  int layer = 0;
  int64_t hidden = 0;
  int64_t rows = 0;
  const float* x = nullptr;  // [rows, hidden]
  absl::Span<const Expert> experts = {};
  absl::Span<const int32_t> row_of = {};  // [pairs] the row of x that a pair multiplies
  absl::Span<const float> weights = {};   // [pairs] FetchInput::weights of each, or ones
  float* out = nullptr;                   // [pairs, hidden], all to be written
  ThreadPool* pool = nullptr;             // the library's threads, for the product to use
};

struct OpaqueWeights {
  std::vector<std::vector<OpaquePart>> layers = {};  // [L], 1 to kMaxRecordParts parts each
  /// Opened when the source is made. Reads go through the page cache, from I/O threads.
  std::vector<std::string> files = {};
  /// Reads parts that have neither memory nor file; may be null. Called from several I/O threads at
  /// once, and with the virtual clock from the thread of the layer call. Must not call the engine
  /// it serves.
  std::function<absl::Status(const OpaqueRead&)> read = {};
  /// kRouter, kSelectionBias and kLogitBias of layers whose routing is not kExternal, for policies
  /// that predict by the next layer's gate; may be null where there are none. Called when an engine
  /// is made.
  std::function<absl::Status(const WeightRead&)> gates = {};
  /// The host's product on the CPU, for strategies that share misses with it
  /// (FetchInput::cpu_rows); may be null. A row of `out` must be what the host's device kernels
  /// have produced for a pair when Engine::TakeCpuRows is called. Called by a thread of the
  /// library, one call per engine at a time, while the device waits: it must not wait for the
  /// device, and must not call the engine. Its error becomes the step's.
  std::function<absl::Status(const OpaqueProduct&)> product = {};
  /// A short name of the format, for reports: ExpertSource::version_name.
  std::string format = "opaque";
};

/// Reads nothing but the files' sizes, which are checked against the parts. InvalidArgument names
/// the layer, part and field. The model has no shared experts: they are the host's. `name` is for
/// messages; errors of `read` are passed on with name, layer, expert and part in front.
absl::StatusOr<std::unique_ptr<ExpertSource>> MakeOpaqueSource(std::string name, MoeModelSpec model,
                                                               OpaqueWeights weights);

}  // namespace moert

#endif  // MOERT_SOURCE_OPAQUE_SOURCE_H_
