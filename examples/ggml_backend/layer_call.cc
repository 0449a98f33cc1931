#include "layer_call.h"

#include <algorithm>

#include "buffers.h"

namespace moert_ggml {
namespace {

constexpr int kMostNodes = 256;  // of a call

}  // namespace

ExpertTensor* ExpertsOf(const ggml_tensor* node) {
  if (node->op != GGML_OP_MUL_MAT_ID || !IsOurs(node->src[0]->buffer)) return nullptr;
  return static_cast<ExpertTensor*>(node->src[0]->extra);
}

bool IsView(const ggml_tensor* node) {
  return node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE || node->op == GGML_OP_NONE;
}

const ggml_tensor* FactorsOf(const ggml_tensor* rows, const ggml_tensor* ids) {
  if (rows->op != GGML_OP_GET_ROWS || rows->src[1] != ids) return nullptr;
  const ggml_tensor* repeated = rows->src[0];
  if (repeated->op != GGML_OP_REPEAT) return nullptr;
  const ggml_tensor* factors = repeated->src[0];
  const bool one_each = factors->type == GGML_TYPE_F32 && factors->ne[0] == 1 &&
                        ggml_nelements(factors) == factors->ne[1] && ggml_is_contiguous(factors);
  return one_each && repeated->ne[1] == factors->ne[1] ? factors : nullptr;
}

LayerCall::LayerCall(ggml_cgraph* graph, int first)
    : graph(graph),
      first(first),
      last(first),
      reach(first),
      experts(ExpertsOf(ggml_graph_node(graph, first))),
      ids(ggml_graph_node(graph, first)->src[2]),
      made_{ggml_graph_node(graph, first)} {
  size_t made = 1;  // up to the last product
  for (int i = first + 1; i < ggml_graph_n_nodes(graph); ++i) {
    const ggml_tensor* next = node(i);
    if (ExpertsOf(next) != nullptr) {
      if (!Joins(next)) break;
      made_.push_back(next);
      made = made_.size();
      last = i;
    } else if (next->op == GGML_OP_MUL_MAT_ID && next->src[2] == ids) {
      made_.push_back(next);  // over an adapter
      made = made_.size();
      last = i;
    } else if (IsView(next)) {
      if (Makes(next->src[0])) made_.push_back(next);
    } else if (IsElementWise(next) || FactorsOf(next, ids) != nullptr) {
      made_.push_back(next);
    } else if (!RepeatsFactors(i)) {
      break;
    }
  }
  made_.resize(made);
  reach = last;
  for (int i = last + 1; i < std::min(ggml_graph_n_nodes(graph), first + kMostNodes); ++i) {
    if (ExpertsOf(node(i)) == nullptr) continue;
    if (!Joins(node(i))) break;
    reach = i;
  }
}

bool LayerCall::Joins(const ggml_tensor* product) const {
  const ExpertTensor* other = ExpertsOf(product);
  return other->model == experts->model && other->block == experts->block && product->src[2] == ids;
}

bool LayerCall::Makes(const ggml_tensor* tensor) const {
  return std::find(made_.begin(), made_.end(), tensor) != made_.end();
}

bool LayerCall::RepeatsFactors(int i) const {
  if (i + 1 == ggml_graph_n_nodes(graph)) return false;
  const ggml_tensor* next = node(i + 1);
  return next->src[0] == node(i) && FactorsOf(next, ids) != nullptr;
}

// One result row for a (token, expert) pair, from rows of the same pair.
bool LayerCall::IsElementWise(const ggml_tensor* next) const {
  switch (next->op) {
    case GGML_OP_GLU:
    case GGML_OP_UNARY:
    case GGML_OP_CLAMP:
    case GGML_OP_SCALE:
    case GGML_OP_SQR:
    case GGML_OP_ADD:
    case GGML_OP_MUL:
    case GGML_OP_ADD_ID:
      break;
    default:
      return false;
  }
  if (next->type != GGML_TYPE_F32 || next->ne[1] != top_k() || next->ne[2] != tokens())
    return false;
  if (next->op == GGML_OP_ADD_ID) return Makes(next->src[0]) && next->src[2] == ids;
  bool any = false;
  for (const ggml_tensor* source : next->src) {
    if (source == nullptr) continue;
    any = any || Makes(source);
    const bool rows = source->ne[1] == top_k() && source->ne[2] == tokens();
    if (!Makes(source) && !(rows && source->type == GGML_TYPE_F32)) return false;
  }
  return any;
}

}  // namespace moert_ggml
