// Which models the plug-in leaves to llama.cpp.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_STOCK_H_
#define MOERT_EXAMPLES_GGML_BACKEND_STOCK_H_

#include <ggml.h>

#include "options.h"

namespace moert_ggml {

/// While llama.cpp asks where a tensor of experts, or a bias of theirs, may lie: whether it keeps
/// this model's. It does where the CPU multiplies and all fit: its own kernels, over weights that
/// it rearranges, are the fastest then. One line says so.
bool LeftToStock(const ggml_tensor* weight, const Options& options);

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_STOCK_H_
