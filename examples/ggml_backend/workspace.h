// Short-lived tensors of graphs that the plug-in makes: their descriptions and their memory.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_WORKSPACE_H_
#define MOERT_EXAMPLES_GGML_BACKEND_WORKSPACE_H_

#include <ggml-backend.h>
#include <ggml.h>

#include <cstddef>
#include <vector>

namespace moert_ggml {

/// Memory comes from a buffer type of the backend that multiplies and is kept for the next graph.
/// One thread at a time.
class Workspace {
 public:
  explicit Workspace(ggml_backend_buffer_type_t buffer_type);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// For descriptions of tensors: ggml_mul_mat_id(context(), ...).
  ggml_context* context() { return context_; }
  /// A tensor with memory; null: there is none.
  ggml_tensor* New(ggml_type type, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1);
  /// The same with its contents.
  ggml_tensor* New(ggml_type type, const void* contents, int64_t ne0, int64_t ne1 = 1);
  /// A description that is a copy of another's.
  ggml_tensor* Copy(const ggml_tensor* tensor);
  /// Memory for a description that has none. False: there is none.
  bool Place(ggml_tensor* tensor);
  /// Descriptions that Copy, New and context() may still give.
  bool room() const { return ggml_used_mem(context_) < kContextBytes / 2; }

  /// All tensors are gone.
  void Reset();

 private:
  static constexpr size_t kContextBytes = size_t{1} << 20;
  struct Block {
    ggml_backend_buffer_t buffer;
    size_t used = 0;
  };

  ggml_backend_buffer_type_t buffer_type_;
  ggml_context* context_;
  std::vector<Block> blocks_;
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_WORKSPACE_H_
