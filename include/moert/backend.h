// Backends: where experts execute and what the fast tier is.
#ifndef MOERT_BACKEND_H_
#define MOERT_BACKEND_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace moert {

enum class BackendKind : int32_t {
  kAuto = 0,  // CUDA where CudaStatus() is OK, else the CPU
  kCpu = 1,   // fast tier: RAM; hidden states in host memory
  kCuda = 2,  // fast tier: device memory; hidden states in device memory, calls ordered by a stream
};

absl::string_view BackendName(BackendKind kind);  // "auto", "cpu", "cuda"

/// OK when this build has the CUDA backend, a driver is there and a device is usable; else why not.
absl::Status CudaStatus();

}  // namespace moert

#endif  // MOERT_BACKEND_H_
