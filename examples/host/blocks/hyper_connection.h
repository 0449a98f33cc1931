// How a block takes its input from the residual stream and gives its output back: one stream and an
// addition, or several streams that weights of each token mix (mHC, DeepSeek-V4).
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_HYPER_CONNECTION_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_HYPER_CONNECTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "host/aligned.h"
#include "host/blocks/linear.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/thread_pool.h"

namespace moert::host {

/// A token's streams give, through one matrix, what the block reads of each (Collapse), and for
/// Expand what each gets of the block's output and of the other streams. The streams' mixture is
/// nearly doubly stochastic. Empty: there is one stream. Not thread-safe: uses scratch.
class HyperConnection {
 public:
  HyperConnection() = default;
  /// Reads `name`_fn, _base and _scale. A last one is behind all layers: it only collapses.
  static absl::StatusOr<HyperConnection> Load(const Checkpoint& checkpoint, const HfConfig& config,
                                              const std::string& name, bool last);

  bool empty() const { return streams_ == 0; }

  /// streams: [rows, streams, hidden]. The block's input [rows, hidden], which lasts until the next
  /// call; of one stream it is `streams` itself.
  const float* Collapse(ThreadPool* pool, const float* streams, int64_t rows);
  /// Adds a block's output [rows, hidden] to the streams that were collapsed last.
  void Expand(ThreadPool* pool, const float* out, int64_t rows, int64_t hidden,
              float* streams) const;

 private:
  int64_t weights() const { return project_.out(); }
  // Weights of a token, in place: reads [streams], then gains [streams] and mixture [streams,
  // streams], as far as there are any.
  void Weigh(const float* streams, float* weights) const;
  void Balance(float* mixture) const;

  int streams_ = 0;
  int64_t hidden_ = 0;
  int iterations_ = 0;
  float eps_ = 0.0f, norm_eps_ = 0.0f;
  Linear project_;
  std::vector<float> base_, scale_;
  AlignedVector<float> weights_, collapsed_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_HYPER_CONNECTION_H_
