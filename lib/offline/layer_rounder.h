// Layers of a pack's version by a method that needs no calibration: read, rounded and written, a
// few experts at a time.
#ifndef MOERT_LIB_OFFLINE_LAYER_ROUNDER_H_
#define MOERT_LIB_OFFLINE_LAYER_ROUNDER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/checkpoint_experts.h"
#include "moert/offline/quantize.h"
#include "moert/scheme.h"
#include "moert/thread_pool.h"
#include "offline/device_fits.h"
#include "offline/expert_mlp.h"
#include "pack/pack_writer.h"

namespace moert::offline {

class LayerRounder {
 public:
  struct Parts {
    const CheckpointExperts* experts;
    PackWriter* writer;
    ThreadPool* pool;
    DeviceFits* device;                             // may be null
    std::string model;                              // named in errors
    std::function<bool()> cancelled;                // as QuantizeJob's; may be null
    std::function<void(int64_t matrices)> advance;  // called when so many more are rounded
  };
  /// Borrows what `parts` point to.
  explicit LayerRounder(Parts parts) : parts_(std::move(parts)) {}

  /// Writes the records of all experts of `layer` in `version`. While some experts are rounded on
  /// the pool, the next are read and the ones before written: three chunks are in memory at most.
  absl::Status Write(int layer, int num_experts, int version, QuantMethod method) const;

 private:
  // Some experts of a layer on their way through reading, rounding and writing.
  struct Chunk {
    int begin = 0;
    std::vector<ExpertWeights> weights;  // stored in bf16
    std::vector<ExpertMatrices> wide;    // of quantized files, not rounded to bf16
    std::vector<RecordLayout> layouts;
    std::vector<std::vector<std::byte>> records;
  };

  std::future<absl::StatusOr<Chunk>> Read(int layer, int version, int begin, int end) const;
  absl::Status ReadOne(int layer, int version, size_t i, Chunk* chunk) const;
  absl::Status Round(int layer, QuantMethod method, Chunk* chunk) const;
  std::future<absl::Status> WriteChunk(int layer, int version, Chunk chunk) const;

  const Parts parts_;
};

/// `status` with the place it came from in front.
absl::Status AtExpert(const absl::Status& status, const std::string& model, int layer, int expert);

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_LAYER_ROUNDER_H_
