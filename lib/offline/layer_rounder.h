// Processes layers of a pack's versions by a method that needs no calibration: reads, rounds and
// writes a few experts at a time.
#ifndef MOERT_LIB_OFFLINE_LAYER_ROUNDER_H_
#define MOERT_LIB_OFFLINE_LAYER_ROUNDER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/checkpoint_experts.h"
#include "moert/offline/quantize.h"
#include "moert/scheme.h"
#include "moert/thread_pool.h"
#include "offline/expert_mlp.h"
#include "offline/offline_device.h"
#include "pack/pack_writer.h"

namespace moert::offline {

class LayerRounder {
 public:
  struct Parts {
    const CheckpointExperts* experts;
    PackWriter* writer;
    ThreadPool* pool;
    OfflineDevice* device;                          // may be null
    std::string model;                              // named in errors
    std::function<bool()> cancelled;                // as QuantizeJob's; may be null
    std::function<void(int64_t matrices)> advance;  // called when so many more are rounded
  };
  /// Borrows what `parts` point to.
  explicit LayerRounder(Parts parts) : parts_(std::move(parts)) {}

  /// All experts of a layer in a version.
  struct Piece {
    int layer;
    int num_experts;
    int version;
    QuantMethod method;
  };
  /// Called when the piece's last record has been written, before any record of the next piece. On
  /// another thread.
  using PieceDone = std::function<absl::Status(const Piece& piece)>;

  /// Writes the records of `pieces`, which are in the pack's order. While some experts are rounded
  /// on the pool, the next ones are read and the previous ones written, across pieces: at most
  /// three chunks are in memory.
  absl::Status Write(absl::Span<const Piece> pieces, const PieceDone& done = {}) const;

 private:
  // Some experts of a piece.
  struct Part {
    const Piece* piece;
    int begin, end;
  };
  // Parts on their way through reading, rounding and writing.
  struct Chunk {
    Part part = {};
    std::vector<ExpertWeights> weights;  // stored in bf16
    std::vector<ExpertMatrices> wide;    // of quantized files, not rounded to bf16
    std::vector<RecordLayout> layouts;
    std::vector<std::vector<std::byte>> records;
  };

  std::vector<Part> Cut(absl::Span<const Piece> pieces) const;
  absl::StatusOr<Chunk> Read(const Part& part) const;
  absl::Status ReadOne(size_t i, Chunk* chunk) const;
  absl::Status Round(Chunk* chunk) const;
  absl::Status WriteChunk(const Chunk& chunk, const PieceDone& done) const;

  const Parts parts_;
};

/// `status` with its location prepended.
absl::Status AtExpert(const absl::Status& status, const std::string& model, int layer, int expert);

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_LAYER_ROUNDER_H_
