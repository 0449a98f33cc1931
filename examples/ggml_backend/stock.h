// Which models the plug-in leaves to llama.cpp.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_STOCK_H_
#define MOERT_EXAMPLES_GGML_BACKEND_STOCK_H_

#include <ggml.h>

#include "options.h"

namespace moert_ggml {

/// Called while llama.cpp asks where a tensor of experts, or one of their biases, may lie: whether
/// llama.cpp keeps this model's experts. It does if the CPU computes and all experts fit: its own
/// kernels, over rearranged weights, are the fastest then. One line reports it.
bool LeftToStock(const ggml_tensor* weight, const Options& options);

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_STOCK_H_
