// Uploads a step's inputs to the device.
#ifndef MOERT_EXAMPLES_HOST_CUDA_STEP_UPLOAD_H_
#define MOERT_EXAMPLES_HOST_CUDA_STEP_UPLOAD_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/blocks/rope.h"
#include "host/cuda/step_inputs.h"
#include "host/token_model.h"
#include "util/cuda_api.h"

namespace moert::host {

/// A model's state of a sequence in device memory: keys and values in bf16, and the states of delta
/// nets.
class DeviceSequence final : public Sequence {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceSequence>> Create(const HfConfig& config,
                                                                const Rope& rope,
                                                                int64_t max_tokens);
  const SequenceCache& cache() const { return cache_; }
  /// A step of `tokens` tokens has been enqueued: the states that it writes become the current
  /// ones.
  void Commit(int64_t tokens) {
    if (tokens > 0) cache_.state = 1 - cache_.state;
    set_length(length() + tokens);
  }

 private:
  DeviceSequence(int64_t max_tokens, bool rewinds) : Sequence(max_tokens, max_tokens, rewinds) {}

  SequenceCache cache_;
  gpu::Buffer memory_;
};

/// The parameters that a step's launches depend on; everything else is in device memory.
struct StepShape {
  int64_t rows = 0;
  int tiles = 0;  // of prefill attention; 0: decode attention
  /// Pieces of decode attention: a power of two, so that growing sequences give few shapes.
  int pieces = 1;
};

/// Buffers in device memory and pinned host memory. One thread at a time.
class StepUpload {
 public:
  StepUpload() = default;
  ~StepUpload();
  StepUpload(const StepUpload&) = delete;
  StepUpload& operator=(const StepUpload&) = delete;

  absl::Status Init(int64_t max_rows);
  /// Enqueues the copy. Steps of the same shape have their inputs at the same addresses.
  absl::Status Enqueue(absl::Span<const SequenceInput> inputs, cudaStream_t stream,
                       StepShape* shape);

  /// The inputs of a step of this shape.
  StepInputs inputs(const StepShape& shape) const;

 private:
  // Steps that may be under way before the host waits for the first one's copy.
  static constexpr int kSlots = 4;

  struct Slot {
    gpu::Buffer memory;
    cudaEvent_t copied = nullptr;
  };
  static int64_t SequencesAt(int64_t rows);
  static int64_t TilesAt(int64_t rows);

  gpu::Buffer device_;
  Slot slots_[kSlots];
  int next_ = 0;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_STEP_UPLOAD_H_
