// Passes calibration tokens through a model, one MoE block at a time, so that a block's experts can
// be measured, quantized or replaced before the tokens go on.
#ifndef MOERT_LIB_OFFLINE_CALIBRATION_STREAM_H_
#define MOERT_LIB_OFFLINE_CALIBRATION_STREAM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/offline/calibration_model.h"
#include "moert/offline/hf_config.h"
#include "moert/offline/token_file.h"
#include "moert/router.h"
#include "moert/thread_pool.h"

namespace moert::offline {

/// Token ids in windows, each a sequence of its own.
struct CalibrationTokens {
  int64_t window = 512;
  std::vector<int32_t> ids;  // whole windows

  int64_t windows() const { return static_cast<int64_t>(ids.size()) / window; }
};

/// The first tokens of every file in turn, `count` in all (0: all of them), cut into windows.
/// `reader`: null: ReadTokenFile.
absl::StatusOr<CalibrationTokens> ReadCalibrationTokens(const std::vector<std::string>& files,
                                                        int64_t vocab_size, int64_t window,
                                                        int64_t count,
                                                        const TokenReader& reader = {});

/// Identifies the tokens: a resumed run must use the same ones.
std::string ChecksumOf(const CalibrationTokens& tokens);

/// The model that the tokens pass, and the threads for it. Borrowed.
struct ModelContext {
  CalibrationModel* model = nullptr;
  const HfConfig* config = nullptr;
  ThreadPool* pool = nullptr;
};

/// All windows together. Not thread-safe. Needs 8 bytes per token and hidden channel.
class CalibrationStream {
 public:
  /// `tokens` are borrowed.
  CalibrationStream(const ModelContext& context, const CalibrationTokens* tokens);
  /// A stream without tokens, for rows of other streams.
  CalibrationStream(const ModelContext& context, int64_t window);

  /// Brings all tokens to the MoE block of `moe_layer`, which follows the last one (or is the
  /// first).
  void ToMoe(int moe_layer);
  int64_t rows() const { return rows_; }
  int64_t hidden() const { return hidden_; }
  /// The block's input [rows, hidden].
  const float* inputs() const { return normed_.data(); }
  /// The matrix to which the block's output [rows, hidden] is to be added.
  float* residual() { return residual_.data(); }

  /// Reserves memory for this many rows in total.
  void Reserve(int64_t rows);
  /// Adds whole windows that have come as far in the model as this stream: residual [rows, hidden].
  void Add(const float* residual, int64_t rows);

  /// Passes the layers after the last MoE block. Returns the input of the logits, [rows, hidden].
  const float* FinishHidden();
  /// After that: the mean of -ln p over all but the first token of each window.
  double Nll() const;

 private:
  void RunLayer(int layer, bool dense);

  const ModelContext context_;
  const CalibrationTokens* const tokens_ = nullptr;
  const int64_t window_;
  const int64_t hidden_;
  int64_t rows_ = 0;
  int next_layer_ = 0;
  std::vector<float> residual_, normed_;
};

/// One expert's tokens in a routing: their rows of the inputs, and their weights.
struct ExpertRows {
  std::vector<int32_t> rows;
  std::vector<float> weights;
};
ExpertRows RowsOf(const RoutingResult& routing, int expert);

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_CALIBRATION_STREAM_H_
