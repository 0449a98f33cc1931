// The buffer type that makes llama.cpp assign expert tensors to this backend: plain host memory,
// and files that llama.cpp maps.
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

/// Whether a tensor, or the tensor it views, has factors of experts that are in a store.
bool AreFactors(const ggml_tensor* tensor);

/// Whether a tensor of experts, or a bias, that llama.cpp is about to load stays with llama.cpp.
bool StaysWithStock(const ggml_tensor* weight);
/// Records how many experts a token of the model being loaded uses: the file's number or the
/// user's.
void NoteUsedExperts(int used);

/// The GPU that computes for this process; null: the CPU does.
Gpu* UsedGpu();

/// A buffer over a mapped file, whose expert tensors come from a store. Null: it cannot be made.
ggml_backend_buffer_t MapBuffer(void* address, size_t size);

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_BUFFERS_H_
