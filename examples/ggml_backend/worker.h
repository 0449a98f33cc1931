// The worker behind a backend of ours: it computes the part of a graph that llama.cpp gives us.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_WORKER_H_
#define MOERT_EXAMPLES_GGML_BACKEND_WORKER_H_

#include <ggml-backend.h>
#include <ggml.h>

namespace moert_ggml {

/// Works for one context of llama.cpp. One thread at a time.
class Worker {
 public:
  virtual ~Worker() = default;

  virtual ggml_status Compute(ggml_cgraph* graph) = 0;
  virtual void SetThreads(int /*threads*/) {}
  /// Waits for what Compute has begun.
  virtual void Synchronize() {}
  /// A part of a graph that Compute will be given, when the graph is planned: in their order.
  virtual void Plan(const ggml_cgraph* /*part*/) {}
  /// Begins to copy an input of ours from another backend of the context; false: the host is to do
  /// it, and waits.
  virtual bool BeginCopy(ggml_backend_t /*from*/, const ggml_tensor* /*tensor*/,
                         ggml_tensor* /*copy*/) {
    return false;
  }
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_WORKER_H_
