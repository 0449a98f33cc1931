// How a block reads its input from the residual stream and adds its output to it: one stream and an
// addition, or several streams mixed by weights of each token (mHC, DeepSeek-V4).
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

/// One matrix computes a token's weights from its streams: how much of each stream the block reads
/// (Collapse), and how much of the block's output and of the other streams each stream receives
/// (Expand). The mixture of streams is nearly doubly stochastic. Empty: there is one stream. Not
/// thread-safe: uses scratch.
class HyperConnection {
 public:
  HyperConnection() = default;
  /// Reads `name`_fn, _base and _scale. `last`: the one after all layers, which only collapses.
  static absl::StatusOr<HyperConnection> Load(const Checkpoint& checkpoint, const HfConfig& config,
                                              const std::string& name, bool last);

  bool empty() const { return streams_ == 0; }

  /// streams: [rows, streams, hidden]. Returns the block's input [rows, hidden], valid until the
  /// next call; with one stream it is `streams` itself.
  const float* Collapse(ThreadPool* pool, const float* streams, int64_t rows);
  /// Adds a block's output [rows, hidden] to the streams that were collapsed last.
  void Expand(ThreadPool* pool, const float* out, int64_t rows, int64_t hidden,
              float* streams) const;

 private:
  int64_t weights() const { return project_.out(); }
  // Computes a token's weights in place: reads [streams], then gains [streams] and mixture
  // [streams, streams], as far as there are any.
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
