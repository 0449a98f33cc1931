// The ggml backend that computes: the CPU's, or the CUDA backend of a llama.cpp context.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_INNER_H_
#define MOERT_EXAMPLES_GGML_BACKEND_INNER_H_

#include <ggml-backend.h>
#include <ggml-cpu.h>

#include <memory>

namespace moert_ggml {

class Inner {
 public:
  /// Null: the device cannot be used.
  static std::unique_ptr<Inner> Create(ggml_backend_dev_t device);
  /// Wraps another owner's backend, which outlives this, with this type of buffers. `slots`: the
  /// buffer of tensors that lie in slots.
  static std::unique_ptr<Inner> Borrow(ggml_backend_t backend, ggml_backend_buffer_type_t type,
                                       ggml_backend_buffer_t slots);
  ~Inner();

  /// Blocks until done.
  ggml_status Compute(ggml_cgraph* graph);
  void SetThreads(int threads);
  ggml_backend_buffer_type_t buffer_type() const { return buffer_type_; }
  /// Null: slots are identified by their address alone.
  ggml_backend_buffer_t slot_buffer() const { return slot_buffer_; }

 private:
  explicit Inner(ggml_backend_t backend)
      : backend_(backend), buffer_type_(ggml_backend_get_default_buffer_type(backend)) {}
  // Whether the backend starts threads for every graph unless it is given a thread pool.
  bool StartsThreads() const;
  template <typename Function>
  Function* Find(const char* name) const;

  ggml_backend_t backend_;
  ggml_backend_buffer_type_t buffer_type_;
  ggml_backend_buffer_t slot_buffer_ = nullptr;
  bool borrowed_ = false;
  int threads_ = 0;
  bool own_threads_ = false;
  ggml_threadpool_t pool_ = nullptr;
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_INNER_H_
