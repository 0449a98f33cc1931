#include "claims.h"

#include "buffers.h"
#include "layer_call.h"

namespace moert_ggml {
namespace {

bool IsProduct(const ggml_tensor* t) {
  return t->op == GGML_OP_MUL_MAT_ID && IsOurs(t->src[0]->buffer);
}

// Whether a product of ours went into t, by element-wise nodes alone. `depth`: how far to look;
// expert biases, clamps and scales make it some nodes.
bool FromProduct(const ggml_tensor* t, int depth) {
  if (t == nullptr || depth == 0) return false;
  switch (t->op) {
    case GGML_OP_MUL_MAT_ID:
      return IsProduct(t);
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_UNARY:
    case GGML_OP_CLAMP:
    case GGML_OP_SCALE:
    case GGML_OP_SQR:
    case GGML_OP_ADD_ID:
      return FromProduct(t->src[0], depth - 1);
    case GGML_OP_GLU:
    case GGML_OP_MUL:
      return FromProduct(t->src[0], depth - 1) || FromProduct(t->src[1], depth - 1);
    default:
      return false;
  }
}

}  // namespace

bool Claims(const ggml_tensor* node, ggml_backend_dev_t inner) {
  constexpr int kDepth = 8;
  bool ours = false;
  switch (node->op) {
    case GGML_OP_NONE:
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
      return true;
    case GGML_OP_MUL_MAT_ID:
      ours = IsProduct(node);
      break;
    case GGML_OP_ADD_ID:  // the biases of experts may be in our buffer, too
      ours = IsOurs(node->src[1]->buffer) || FromProduct(node->src[0], kDepth);
      break;
    case GGML_OP_ADD:  // of the sum over experts: one operand is a view of the weighted results
      ours = node->src[1]->op == GGML_OP_VIEW && FromProduct(node->src[1], kDepth);
      break;
    case GGML_OP_GLU:
    case GGML_OP_MUL:
    case GGML_OP_UNARY:
    case GGML_OP_CLAMP:
    case GGML_OP_SCALE:
    case GGML_OP_SQR:
      ours = FromProduct(node, kDepth);
      break;
    default:
      break;
  }
  return ours && ggml_backend_dev_supports_op(inner, node);
}

}  // namespace moert_ggml
