// The pairs of a layer call that the CPU computes while the GPU multiplies all others.
//
// The GPU's kernels compute every pair. For experts that the GPU does not have they read whatever
// lies in the expert's place, and the resulting rows are replaced before anything reads them.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_PROMPT_JOB_H_
#define MOERT_EXAMPLES_GGML_BACKEND_PROMPT_JOB_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpu.h"
#include "layer_call.h"
#include "store.h"
#include "workspace.h"

namespace moert_ggml {

/// One job at a time: the backend must have finished all work of Put before the next job begins.
class PromptJob {
 public:
  explicit PromptJob(Gpu* gpu);

  /// Takes the pairs of these experts in a call whose ids, [tokens, k], are `ids`. False: there is
  /// no memory, and the GPU computes all.
  bool Begin(const LayerCall& call, std::span<const int32_t> ids, std::span<const int32_t> experts);
  /// Reads the call's input, which has been computed, before the products are launched: their
  /// results may share its memory.
  bool ReadInput();
  /// Computes the pairs on the CPU.
  bool Multiply(Store* store, int layer, std::string* error);
  /// Replaces the pairs' rows of the products' last result, in the backend's order.
  ggml_status Put(ggml_backend_t backend, const ggml_tensor* out);

 private:
  // Fills pairs_ except for its memory, and returns each pair's row in the result.
  std::vector<int32_t> Gather(const LayerCall& call, std::span<const int32_t> ids,
                              std::span<const int32_t> experts);

  Gpu* const gpu_;
  Workspace host_;    // pinned: the device reads results where they lie
  Workspace device_;  // the rows' numbers
  CpuPairs pairs_;
  const ggml_tensor* input_ = nullptr;
  ggml_tensor* out_ = nullptr;   // results, [hidden, pairs]
  ggml_tensor* rows_ = nullptr;  // where they go, [pairs]
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_PROMPT_JOB_H_
