// Decides which nodes of a graph this backend claims: products over experts, and the nodes after
// them up to the sum over a token's experts, so that a layer is one piece of the graph and not two.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_CLAIMS_H_
#define MOERT_EXAMPLES_GGML_BACKEND_CLAIMS_H_

#include <ggml-backend.h>

namespace moert_ggml {

/// `inner`: the device that would compute the node.
bool Claims(const ggml_tensor* node, ggml_backend_dev_t inner);
/// The same for a GPU: experts that are in no store stay with the CPU.
bool ClaimsForGpu(const ggml_tensor* node, ggml_backend_dev_t inner);

/// Reports once that llama.cpp has read experts into memory of its own, if a product uses such
/// ones.
void SayIfNotMapped(const ggml_tensor* node);

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_CLAIMS_H_
