// Computes the part of a graph that llama.cpp assigns to this backend: products over experts run on
// an inner ggml backend, with the store's slots in place of the tensors of all experts.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_RUNNER_H_
#define MOERT_EXAMPLES_GGML_BACKEND_RUNNER_H_

#include <ggml-backend.h>
#include <ggml.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "inner.h"
#include "layer_call.h"
#include "models.h"
#include "worker.h"
#include "workspace.h"

namespace moert_ggml {

/// Makes a layer's tensor of slots, in the form of its tensor of all experts. `buffer`: see
/// Inner::slot_buffer.
void PutInSlots(const ggml_tensor* all, const moert_slots& slots, int part,
                ggml_backend_buffer_t buffer, ggml_tensor* tensor);

class Runner final : public Worker {
 public:
  explicit Runner(std::unique_ptr<Inner> inner);

  ggml_status Compute(ggml_cgraph* graph) override;
  void SetThreads(int threads) override { inner_->SetThreads(threads); }

  // The steps of a layer call.

  /// The call's ids, and the experts that they name. False: one is out of range.
  bool ReadIds(const LayerCall& call);
  /// The same for ids that were read already: `data` holds the contents of call.ids.
  bool TakeIds(const LayerCall& call, const char* data);
  std::span<const int32_t> named() const { return named_; }
  /// The ids, token by token.
  std::span<const int32_t> ids() const { return ids_; }
  /// Fetches the named experts.
  Store::Result FetchNamed(Store* store, int layer, std::span<const float> hidden,
                           moert_slots* slots, std::string* error);
  /// The slot of each id.
  std::vector<int32_t> NamedSlots();

 private:
  friend class Chunks;

  // *last: the last node of the graph that was computed.
  ggml_status Run(const LayerCall& call, int* last);
  ggml_status RunAtOnce(const LayerCall& call, const moert_slots& slots);
  // Computes experts that do not fit together in chunks, over the rows that use them.
  ggml_status RunInChunks(const LayerCall& call, Store* store);

  void Append(ggml_tensor* node);
  // Computes the appended nodes.
  ggml_status Flush();
  ggml_tensor* SlotTensor(const ggml_tensor* all, const moert_slots& slots, int part);

  std::unique_ptr<Inner> inner_;
  Workspace nodes_;  // of the graph being made
  Workspace kept_;   // over the chunks of a layer
  ggml_cgraph* pending_ = nullptr;

  // State of the layer call: ids as read, the experts named, in order of appearance, and their
  // slots.
  std::vector<int32_t> ids_;
  std::vector<int32_t> named_;
  std::vector<int32_t> slot_of_named_;
  std::vector<int32_t> slot_of_expert_;
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_RUNNER_H_
