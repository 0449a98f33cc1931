// The buffer type that draws expert tensors to us: plain host memory, and files that llama.cpp
// maps.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_BUFFERS_H_
#define MOERT_EXAMPLES_GGML_BACKEND_BUFFERS_H_

#include <ggml-backend.h>

#include <cstddef>

#include "gpu.h"
#include "options.h"

namespace moert_ggml {

/// Belongs to `device`. Both live as long as the process.
ggml_backend_buffer_type_t MakeBufferType(ggml_backend_dev_t device, const Options& options);

/// Whether a buffer (or null) is of that type.
bool IsOurs(const ggml_backend_buffer* buffer);

/// Whether a tensor, or what it is a view of, has factors of experts that are in a store.
bool AreFactors(const ggml_tensor* tensor);

/// Whether a tensor of experts, or a bias, that llama.cpp is about to load stays its own.
bool StaysWithStock(const ggml_tensor* weight);
/// Experts that a token of the model uses that is being loaded: the file's number, or the user's.
void NoteUsedExperts(int used);

/// The GPU that multiplies for this process; null: the CPU does.
Gpu* UsedGpu();

/// A buffer over a mapped file: expert tensors in it come from a store. Null: it cannot be had.
ggml_backend_buffer_t MapBuffer(void* address, size_t size);

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_BUFFERS_H_
