// The dense parts of a model, which a host runs while the experts are measured or quantized: the
// layers that calibration tokens pass between one MoE block and the next. libmoert has no attention
// of its own. examples/cli/pack/host_model.cc implements this with the example decoder.
#ifndef MOERT_OFFLINE_CALIBRATION_MODEL_H_
#define MOERT_OFFLINE_CALIBRATION_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/thread_pool.h"

namespace moert {

/// Products of fp32 matrices in host memory. Thread-safe.
class MatrixProducts {
 public:
  virtual ~MatrixProducts() = default;
  /// y = x w^T; w: [out, in], x: [rows, in], y: [rows, out], row-major and dense. `pool`: the
  /// threads that may be used, a single one where the caller is a job of another pool. A row of y
  /// must not depend on the others or on the number of threads.
  virtual void Multiply(ThreadPool* pool, const float* w, int64_t out, int64_t in, const float* x,
                        int64_t rows, float* y) = 0;
};

/// One layer at a time, by one thread. Rows are positions 0, 1, ... of a sequence, at most as many
/// as the window that the model was opened with; residual, normed and hidden are [rows, hidden
/// size], fp32.
class CalibrationModel {
 public:
  virtual ~CalibrationModel() = default;

  /// Token embeddings. Ids are in the vocabulary.
  virtual void Embed(absl::Span<const int32_t> tokens, float* residual) = 0;
  /// Adds a layer's attention block to residual; normed receives the input of its feed-forward
  /// block.
  virtual void Attention(int layer, int64_t rows, float* residual, float* normed) = 0;
  /// The same for several sequences of `rows` positions each, concatenated. A host may process them
  /// together; by default they run one by one.
  virtual void AttentionOfMany(int layer, int64_t sequences, int64_t rows, int64_t hidden_size,
                               float* residual, float* normed) {
    for (int64_t s = 0; s < sequences; ++s) {
      Attention(layer, rows, residual + s * rows * hidden_size, normed + s * rows * hidden_size);
    }
  }
  /// Adds the feed-forward block of a layer that is not MoE.
  virtual void Dense(int layer, int64_t rows, const float* normed, float* residual) = 0;
  /// The final norm.
  virtual void Finish(int64_t rows, const float* residual, float* hidden) = 0;
  /// hidden of Finish -> logits [rows, vocabulary].
  virtual void Logits(int64_t rows, const float* hidden, float* logits) = 0;

  /// Multiplies the experts' matrices. Lives as long as the model.
  virtual MatrixProducts* products() = 0;
};

/// Opens the dense parts of a checkpoint for sequences of at most `window` tokens. The arguments
/// outlive the model.
using OpenCalibrationModel = std::function<absl::StatusOr<std::unique_ptr<CalibrationModel>>(
    const Checkpoint& checkpoint, const HfConfig& config, ThreadPool* pool, int64_t window)>;

}  // namespace moert

#endif  // MOERT_OFFLINE_CALIBRATION_MODEL_H_
