// Which nodes of a graph are ours: products over experts, and what follows them up to the sum over
// a token's experts, so that a layer is one piece of the graph and not two.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_CLAIMS_H_
#define MOERT_EXAMPLES_GGML_BACKEND_CLAIMS_H_

#include <ggml-backend.h>

namespace moert_ggml {

/// `inner`: the device that would compute it.
bool Claims(const ggml_tensor* node, ggml_backend_dev_t inner);
/// The same of a GPU: experts that are in no store stay the CPU's.
bool ClaimsForGpu(const ggml_tensor* node, ggml_backend_dev_t inner);

/// Says once that llama.cpp read experts into memory of its own, where a product names such.
void SayIfNotMapped(const ggml_tensor* node);

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_CLAIMS_H_
