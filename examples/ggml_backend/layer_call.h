// The products of one layer in a graph, with what lies between them.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_LAYER_CALL_H_
#define MOERT_EXAMPLES_GGML_BACKEND_LAYER_CALL_H_

#include <ggml.h>

#include <vector>

#include "models.h"

namespace moert_ggml {

/// The expert tensor a node multiplies with, where that comes from a store; else null.
ExpertTensor* ExpertsOf(const ggml_tensor* node);

/// VIEW, RESHAPE and the like: nothing to compute.
bool IsView(const ggml_tensor* node);

/// The factors of all experts, [1, experts], if `rows` [1, k, T] are those that `ids` name; else
/// null. llama.cpp repeats them for every token and then gets rows.
const ggml_tensor* FactorsOf(const ggml_tensor* rows, const ggml_tensor* ids);

/// Nodes [first, last] of a graph: products over experts of one layer, and over adapters of theirs,
/// by the same ids, factors of experts by these ids, and element-wise nodes over all of them. Up,
/// gate, GLU and down, usually.
struct LayerCall {
  /// `first` is a product.
  LayerCall(ggml_cgraph* graph, int first);

  ggml_tensor* node(int i) const { return ggml_graph_node(graph, i); }
  /// Rows of a tensor that are those of (token, expert) pairs: [n, k, T].
  int64_t top_k() const { return ids->ne[0]; }
  int64_t tokens() const { return ids->ne[1]; }
  /// Whether a node of the call makes it.
  bool Makes(const ggml_tensor* tensor) const;

  ggml_cgraph* graph;
  int first;
  int last;
  /// The layer's last product by these ids: between `last` and it lies what else llama.cpp computes
  /// there.
  int reach;
  ExpertTensor* experts;   // of node `first`
  const ggml_tensor* ids;  // [k, T]

 private:
  // Whether a product over experts is of this layer, by the same ids.
  bool Joins(const ggml_tensor* product) const;
  bool IsElementWise(const ggml_tensor* node) const;
  // Whether node i repeats factors of which the next takes rows.
  bool RepeatsFactors(int i) const;

  std::vector<const ggml_tensor*> made_;
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_LAYER_CALL_H_
