// The products of one layer in a graph, with the nodes between them.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_LAYER_CALL_H_
#define MOERT_EXAMPLES_GGML_BACKEND_LAYER_CALL_H_

#include <ggml.h>

#include <vector>

#include "models.h"

namespace moert_ggml {

/// The expert tensor that a node multiplies with, if it comes from a store; else null.
ExpertTensor* ExpertsOf(const ggml_tensor* node);

/// VIEW, RESHAPE and the like: nothing to compute.
bool IsView(const ggml_tensor* node);

/// The factors of all experts, [1, experts], if `rows` [1, k, T] are their rows selected by `ids`;
/// else null. llama.cpp repeats the factors for every token and then gets rows.
const ggml_tensor* FactorsOf(const ggml_tensor* rows, const ggml_tensor* ids);

/// Nodes [first, last] of a graph: products over experts of one layer and over their adapters, all
/// by the same ids; factors of experts by these ids; and element-wise nodes over all of them.
/// Usually up, gate, GLU and down.
struct LayerCall {
  /// `first` is a product.
  LayerCall(ggml_cgraph* graph, int first);

  ggml_tensor* node(int i) const { return ggml_graph_node(graph, i); }
  /// Rows of a tensor that are those of (token, expert) pairs: [n, k, T].
  int64_t top_k() const { return ids->ne[0]; }
  int64_t tokens() const { return ids->ne[1]; }
  /// Whether a node of the call produces the tensor.
  bool Makes(const ggml_tensor* tensor) const;

  ggml_cgraph* graph;
  int first;
  int last;
  /// The layer's last product by these ids. Other nodes that llama.cpp computes may lie between
  /// `last` and it.
  int reach;
  ExpertTensor* experts;   // of node `first`
  const ggml_tensor* ids;  // [k, T]

 private:
  // Whether a product over experts belongs to this layer and uses the same ids.
  bool Joins(const ggml_tensor* product) const;
  bool IsElementWise(const ggml_tensor* node) const;
  // Whether node i repeats factors of which the next node takes rows.
  bool RepeatsFactors(int i) const;

  std::vector<const ggml_tensor*> made_;
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_LAYER_CALL_H_
