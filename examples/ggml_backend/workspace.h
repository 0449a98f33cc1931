// Short-lived tensors of graphs that the plug-in makes: their descriptions and their memory.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_WORKSPACE_H_
#define MOERT_EXAMPLES_GGML_BACKEND_WORKSPACE_H_

#include <ggml-backend.h>
#include <ggml.h>

#include <cstddef>
#include <vector>

namespace moert_ggml {

/// Memory comes from a buffer type of the computing backend and is kept for the next graph. One
/// thread at a time.
class Workspace {
 public:
  explicit Workspace(ggml_backend_buffer_type_t buffer_type);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// Holds descriptions of tensors: ggml_mul_mat_id(context(), ...).
  ggml_context* context() { return context_; }
  /// A tensor with memory; null: no memory.
  ggml_tensor* New(ggml_type type, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1);
  /// The same with its contents.
  ggml_tensor* New(ggml_type type, const void* contents, int64_t ne0, int64_t ne1 = 1);
  /// A copy of a tensor's description.
  ggml_tensor* Copy(const ggml_tensor* tensor);
  /// Allocates memory for a description that has none. False: no memory.
  bool Place(ggml_tensor* tensor);
  /// Whether there is room for further descriptions by Copy, New and context().
  bool room() const { return ggml_used_mem(context_) < kContextBytes / 2; }

  /// Removes all tensors.
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
