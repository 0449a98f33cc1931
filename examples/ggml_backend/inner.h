// The ggml backend that multiplies: the CPU's.
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
  ~Inner();

  /// Blocks until done.
  ggml_status Compute(ggml_cgraph* graph);
  void SetThreads(int threads);
  ggml_backend_buffer_type_t buffer_type() const;

 private:
  explicit Inner(ggml_backend_t backend);
  template <typename Function>
  Function* Find(const char* name) const;

  ggml_backend_t backend_;
  int threads_ = 0;
  // A CPU backend without OpenMP starts threads for every graph, unless it is given some.
  bool own_threads_ = false;
  ggml_threadpool_t pool_ = nullptr;
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_INNER_H_
