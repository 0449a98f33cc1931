// Room for whole layers of experts in GPU memory: while one layer is multiplied the next arrives.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_STAGING_H_
#define MOERT_EXAMPLES_GGML_BACKEND_STAGING_H_

#include <ggml-backend.h>

#include <cstddef>

#include "gpu.h"

namespace moert_ggml {

/// Two places, taken in turns by layers. The caller holds the GPU's lock.
class Staging {
 public:
  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Makes both places at least so large. False: there is no memory.
  bool Reserve(Gpu* gpu, size_t bytes);
  /// The layer's place. What the GPU's stream gets from now on comes behind the last use of it;
  /// null: that cannot be ordered.
  void* Enter(Gpu* gpu, int layer);
  /// Behind what reads it.
  void Leave(ggml_backend_t backend, int layer);

 private:
  struct Place {
    ggml_backend_buffer_t buffer = nullptr;
    ggml_backend_event_t left = nullptr;
  };
  Place places_[2];
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_STAGING_H_
