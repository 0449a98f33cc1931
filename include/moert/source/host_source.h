// A source over weights that the host has in its own format: the host's callback fills rows of
// plain matrices, and the library packs them.
#ifndef MOERT_SOURCE_HOST_SOURCE_H_
#define MOERT_SOURCE_HOST_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "moert/model.h"
#include "moert/source/expert_source.h"
#include "moert/tensor.h"

namespace moert {

enum class WeightPart : int32_t {
  kGateProj = 0,       // of an expert: [intermediate, hidden], in HostWeights::dtype
  kUpProj = 1,         // of an expert: [intermediate, hidden], in HostWeights::dtype
  kDownProj = 2,       // of an expert: [hidden, intermediate], in HostWeights::dtype
  kRouter = 3,         // of a layer: [num_experts, hidden], f32
  kSelectionBias = 4,  // of a layer: [1, num_experts], f32
  kSharedGate = 5,     // of a layer: [1, hidden], f32
  kRecord = 6,         // of an expert: [1, bytes], a packed record (docs/reference/layout.md), u8
  kLogitBias = 7,      // of a layer: [1, num_experts], f32
  kExpertScales = 8,   // of a layer: [1, num_experts], f32
  kHashExperts = 9,    // of a layer: [hash_vocab, top_k], i32
  kGateBias = 10,      // of an expert: [1, intermediate], f32
  kUpBias = 11,        // of an expert: [1, intermediate], f32
  kDownBias = 12,      // of an expert: [1, hidden], f32
};

/// The value of WeightRead::expert for parts of the shared expert.
inline constexpr int kSharedExpert = -1;

/// Asks for rows [first_row, first_row + rows) of a row-major matrix, contiguous, in `dtype`.
struct WeightRead {
  int layer = 0;
  int expert = 0;  // kSharedExpert, or an expert; 0 for parts of a layer
  WeightPart part = WeightPart::kGateProj;
  int version = 0;        // kRecord: index into HostWeights::schemes
  int64_t first_row = 0;  // a multiple of kRowTile
  int64_t rows = 0;
  int64_t cols = 0;
  DType dtype = DType::kF32;
  void* dst = nullptr;

  int64_t bytes() const { return rows * cols * DTypeBytes(dtype); }
};

struct HostWeights {
  /// Called from several I/O threads at once, and with the virtual clock from the thread of the
  /// layer call. Must not call the engine it serves.
  std::function<absl::Status(const WeightRead&)> read = {};
  /// The type of the three projections: f32, bf16 or f16. Kept as bf16, rounded to nearest even.
  DType dtype = DType::kBF16;
  /// Not empty: experts come as packed records in these schemes, most bits first.
  std::vector<std::string> schemes = {};
  /// With `schemes`: implements ExpertSource::PinnedRecord for records in the host's page-locked
  /// memory. A record at another alignment is read instead. May be null. Called like `read`.
  std::function<const std::byte*(int layer, int expert, int version)> pinned_record = {};
};

/// `name` is for messages. Errors of `read` are passed on with name, layer, expert and part in
/// front.
absl::StatusOr<std::unique_ptr<ExpertSource>> MakeHostSource(std::string name, MoeModelSpec model,
                                                             HostWeights weights);

}  // namespace moert

#endif  // MOERT_SOURCE_HOST_SOURCE_H_
