// Decides which experts of a layer are loaded for a batch that streams layers through the GPU.
//
// The experts of a layer are known late, after its router. While the layer before it is multiplied,
// the experts that the layer used last time are loaded, and the rest once its ids have been read,
// for which the host waits. If that gains nothing, because nearly all experts are used or the link
// is faster than the products, whole layers are loaded without a wait.
//
// Experts that are not pinned are read by the host itself, maybe from a disk. Useless reads are
// weighed against the wait for ids: if they would take longer, only experts that were named are
// read.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_STREAM_PLAN_H_
#define MOERT_EXAMPLES_GGML_BACKEND_STREAM_PLAN_H_

#include <chrono>
#include <climits>
#include <cstdint>
#include <span>
#include <vector>

namespace moert_ggml {

/// A pass is one batch through the layers in their order. Not thread-safe.
class StreamPlan {
 public:
  /// `experts`: of each layer.
  explicit StreamPlan(const std::vector<int>& experts);

  using Time = std::chrono::nanoseconds;

  /// The call of a layer with this many tokens begins. Returns whether its ids are to be read
  /// first.
  bool ReadsIds(int layer, int64_t tokens);
  /// After ReadsIds: the experts that the ids name, each once, whether the link was idle by then,
  /// and how long the host has waited.
  void Named(int layer, std::span<const int32_t> experts, bool idle, Time waited);
  /// The CPU computes some experts and gains by that.
  void Shares() { shares_ = true; }
  /// The host has loaded this many experts, or handed them to the link, in that time.
  void Brought(size_t experts, Time took);
  /// Whether experts of the layer should be loaded before it names them: it will come in this pass,
  /// as it did in the last one. llama.cpp computes the last layer only for tokens whose results it
  /// returns.
  bool ComesAhead(int layer) const;
  /// The experts that the layer will probably name; all of them if unknown.
  const std::vector<int32_t>& Likely(int layer) const {
    return likely_[static_cast<size_t>(layer)];
  }
  /// All experts of the layer.
  const std::vector<int32_t>& All(int layer) const { return all_[static_cast<size_t>(layer)]; }

 private:
  void EndPass();
  void BeginPass(int64_t tokens);
  /// Whether the host loads this many experts in no more time than it has waited for ids.
  bool Cheap(int64_t experts) const;

  std::vector<std::vector<int32_t>> all_, likely_;
  bool reads_ = true;
  int last_ = -1;       // layer of the last call
  int end_ = INT_MAX;   // of the last pass, its last layer
  int unread_ = 0;      // passes since ids were read
  int64_t tokens_ = 0;  // of the last pass that read them
  // State of the pass.
  int calls_ = 0;  // that read ids
  int idle_ = 0;
  bool shares_ = false;
  int64_t named_ = 0, there_ = 0;  // experts of their layers
  int64_t vain_ = 0;               // that were likely and not named
  int64_t brought_ = 0;
  Time took_{0}, waited_{0};
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_STREAM_PLAN_H_
