// MOERT0, a GPU device of ours that stands for CUDA's. llama.cpp gives such a device all nodes of a
// graph, where the accelerator MOERT gets those of experts only. So a layer is one launch, and a
// token that is recorded is one altogether.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_WHOLE_DEVICE_H_
#define MOERT_EXAMPLES_GGML_BACKEND_WHOLE_DEVICE_H_

#include <ggml-backend.h>

namespace moert_ggml {

/// Null: there is no CUDA device, CUDA's backend is not loaded yet, or it does not name the device:
/// llama.cpp would use it twice then. `mapped`: the type of our buffers.
ggml_backend_dev_t MakeWholeDevice(ggml_backend_reg_t registry, ggml_backend_buffer_type_t mapped);

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_WHOLE_DEVICE_H_
