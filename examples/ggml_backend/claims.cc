#include "claims.h"

#include <mutex>

#include "buffers.h"
#include "gguf_model.h"
#include "layer_call.h"
#include "options.h"

namespace moert_ggml {
namespace {

bool IsProduct(const ggml_tensor* t) {
  return t->op == GGML_OP_MUL_MAT_ID && IsOurs(t->src[0]->buffer);
}

// The claimed product that reaches t through element-wise nodes only; null: none. `depth`: nodes to
// look back; expert biases, clamps and scales add some.
const ggml_tensor* ProductOf(const ggml_tensor* t, int depth = 8) {
  if (t == nullptr || depth == 0) return nullptr;
  switch (t->op) {
    case GGML_OP_MUL_MAT_ID:
      return IsProduct(t) ? t : nullptr;
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_UNARY:
    case GGML_OP_CLAMP:
    case GGML_OP_SCALE:
    case GGML_OP_SQR:
    case GGML_OP_ADD_ID:
      return ProductOf(t->src[0], depth - 1);
    case GGML_OP_GLU:
    case GGML_OP_MUL: {
      const ggml_tensor* first = ProductOf(t->src[0], depth - 1);
      return first != nullptr ? first : ProductOf(t->src[1], depth - 1);
    }
    case GGML_OP_ADD: {  // of an adapter's product: pairs of rows as before
      const ggml_tensor* first = ProductOf(t->src[0], depth - 1);
      const bool both = first != nullptr && ProductOf(t->src[1], depth - 1) != nullptr;
      return both && ggml_are_same_shape(t, t->src[1]) && t->ne[1] == first->ne[1] &&
                     t->ne[2] == first->ne[2]
                 ? first
                 : nullptr;
    }
    default:
      return nullptr;
  }
}

bool IsView(ggml_op op) {
  return op == GGML_OP_NONE || op == GGML_OP_VIEW || op == GGML_OP_RESHAPE ||
         op == GGML_OP_PERMUTE || op == GGML_OP_TRANSPOSE;
}

// The product because of which a node is claimed; null: the node is not claimed.
const ggml_tensor* ClaimingProduct(const ggml_tensor* node) {
  switch (node->op) {
    case GGML_OP_ADD:  // of the sum over experts: one operand is a view of the weighted results
      return node->src[1]->op == GGML_OP_VIEW ? ProductOf(node->src[1]) : ProductOf(node);
    case GGML_OP_MUL_MAT_ID:
    case GGML_OP_ADD_ID:
    case GGML_OP_GLU:
    case GGML_OP_MUL:
    case GGML_OP_UNARY:
    case GGML_OP_CLAMP:
    case GGML_OP_SCALE:
    case GGML_OP_SQR:
      return ProductOf(node);
    default:
      return nullptr;
  }
}

// Whether a node repeats factors of experts that are in a store, or takes rows of them.
bool TakesFactors(const ggml_tensor* node) {
  if (node->op == GGML_OP_GET_ROWS) node = node->src[0];
  return node->op == GGML_OP_REPEAT && AreFactors(node->src[0]);
}

// Whether llama.cpp, while it loads a model, asks where a weight may lie: the weight has no memory
// yet.
bool IsAsked(const ggml_tensor* weight) {
  return IsOurs(weight->buffer) && ggml_backend_buffer_get_size(weight->buffer) == 0;
}

}  // namespace

bool Claims(const ggml_tensor* node, ggml_backend_dev_t inner) {
  if (IsView(node->op)) return true;
  const bool product = node->op == GGML_OP_MUL_MAT_ID, biased = node->op == GGML_OP_ADD_ID;
  const ggml_tensor* weight = product ? node->src[0] : biased ? node->src[1] : nullptr;
  if (weight != nullptr && IsAsked(weight)) {
    if (product) NoteUsedExperts(static_cast<int>(node->src[2]->ne[0]));
    if (StaysWithStock(weight)) return false;
  }
  // The biases of experts may be in our buffer, too.
  const bool bias = biased && IsOurs(weight->buffer);
  const bool claimed = bias || TakesFactors(node) || ClaimingProduct(node) != nullptr;
  return claimed && ggml_backend_dev_supports_op(inner, node);
}

void SayIfNotMapped(const ggml_tensor* node) {
  static std::once_flag once;
  if (!IsProduct(node) || IsAsked(node->src[0]) || node->src[0]->extra != nullptr ||
      BlockOfExperts(node->src[0]->name) < 0) {
    return;
  }
  std::call_once(once, [] {
    Say("the model was loaded without mmap: its experts are in RAM already and are not cached. "
        "llama.cpp maps files by default but for integrated GPUs; -lm mmap asks for it");
  });
}

bool ClaimsForGpu(const ggml_tensor* node, ggml_backend_dev_t inner) {
  if (IsView(node->op)) return true;
  SayIfNotMapped(node);
  const ggml_tensor* product = ClaimingProduct(node);
  const bool in_store = product != nullptr && ExpertsOf(product) != nullptr;
  return (in_store || TakesFactors(node)) && ggml_backend_dev_supports_op(inner, node);
}

}  // namespace moert_ggml
