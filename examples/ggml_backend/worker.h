// The worker of a backend of ours: it computes the part of a graph that llama.cpp assigns to it.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_WORKER_H_
#define MOERT_EXAMPLES_GGML_BACKEND_WORKER_H_

#include <ggml-backend-impl.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <memory>

namespace moert_ggml {

/// Works for one context of llama.cpp. One thread at a time.
class Worker {
 public:
  virtual ~Worker() = default;

  virtual ggml_status Compute(ggml_cgraph* graph) = 0;
  virtual void SetThreads(int /*threads*/) {}
  /// Waits for the work that Compute has started.
  virtual void Synchronize() {}
  /// While the graph is planned: a part that Compute will be given. Parts come in order.
  virtual void Plan(const ggml_cgraph* /*part*/) {}
  /// Begins to copy an input of ours from another backend of the context. False: the host has to
  /// copy it, and waits.
  virtual bool BeginCopy(ggml_backend_t /*from*/, const ggml_tensor* /*tensor*/,
                         ggml_tensor* /*copy*/) {
    return false;
  }
};

/// A backend that a worker computes for, with the functions that every backend has.
std::unique_ptr<ggml_backend> MakeBackend(ggml_backend_dev_t device, ggml_guid_t guid,
                                          const char* (*name)(ggml_backend_t),
                                          std::unique_ptr<Worker> worker);
/// The worker of such a backend.
Worker* WorkerOf(ggml_backend_t backend);

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_WORKER_H_
