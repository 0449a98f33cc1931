// A layer call whose experts do not fit in the slots together. They are loaded in chunks; for each
// chunk the rows that use its experts are gathered, multiplied, and written to their places in the
// results. Every expert is loaded once, with all its rows, so results equal those of one call bit
// by bit.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_CHUNKS_H_
#define MOERT_EXAMPLES_GGML_BACKEND_CHUNKS_H_

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "runner.h"

namespace moert_ggml {

class Chunks {
 public:
  Chunks(Runner* runner, const LayerCall& call) : runner_(*runner), call_(call) {}

  ggml_status Run(Store* store);

 private:
  // Copies the call's inputs: llama.cpp may reuse their memory for results of the call.
  bool KeepInputs();
  bool Keep(const ggml_tensor* tensor);

  void NamePairs(std::span<const int32_t> experts, std::span<const int32_t> slots);
  ggml_status RunLot(const moert_slots& slots);
  ggml_tensor* MakeNode(ggml_tensor* node, const moert_slots& slots);
  ggml_tensor* MakeProduct(const ggml_tensor* node, const moert_slots& slots);
  ggml_tensor* MakeView(const ggml_tensor* node);
  ggml_tensor* MakeFactors(const ggml_tensor* node);
  ggml_tensor* MakeElementWise(const ggml_tensor* node);
  // The chunk's rows of a tensor [n, k or 1, T]: [n, 1, pairs].
  ggml_tensor* Rows(const ggml_tensor* tensor);
  // Gathers `rows` of a tensor, [n, 1, rows]; null: no memory.
  ggml_tensor* Gather(const ggml_tensor* from, const std::vector<int32_t>& rows);
  // Scatters a chunk's rows into a result of the graph.
  bool PutBack(ggml_tensor* node, ggml_tensor* lot);
  bool UsedInCall(const ggml_tensor* tensor) const;
  // Whether later nodes of our part of the graph use the tensor.
  bool UsedBehindCall(const ggml_tensor* tensor) const;
  void Append(ggml_tensor* node);

  Runner& runner_;
  const LayerCall& call_;
  std::unordered_map<const ggml_tensor*, ggml_tensor*> kept_;

  // A chunk's (token, expert) pairs, and the tensors over them.
  std::vector<int32_t> pair_, expert_, slot_;
  std::unordered_map<const ggml_tensor*, ggml_tensor*> made_;
  ggml_tensor* expert_ids_ = nullptr;  // [1, pairs]
  ggml_tensor* slot_ids_ = nullptr;
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_CHUNKS_H_
