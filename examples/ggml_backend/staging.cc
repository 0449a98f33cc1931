#include "staging.h"

namespace moert_ggml {

Staging::~Staging() {
  for (const Place& place : places_) {
    if (place.buffer != nullptr) ggml_backend_buffer_free(place.buffer);
    if (place.left != nullptr) ggml_backend_event_free(place.left);
  }
}

bool Staging::Reserve(Gpu* gpu, size_t bytes) {
  for (Place& place : places_) {
    if (place.left == nullptr) place.left = ggml_backend_event_new(gpu->device());
    if (place.left == nullptr) return false;
    if (place.buffer != nullptr && ggml_backend_buffer_get_size(place.buffer) >= bytes) continue;
    if (place.buffer != nullptr) {
      gpu->stream()->SynchronizeDevice();
      ggml_backend_buffer_free(place.buffer);
    }
    place.buffer = ggml_backend_buft_alloc_buffer(gpu->cuda_type(), bytes);
    if (place.buffer == nullptr) return false;
  }
  return true;
}

void* Staging::Enter(Gpu* gpu, int layer) {
  const Place& place = places_[layer & 1];
  return gpu->stream()->Await(place.left) ? ggml_backend_buffer_get_base(place.buffer) : nullptr;
}

void Staging::Leave(ggml_backend_t backend, int layer) {
  ggml_backend_event_record(places_[layer & 1].left, backend);
}

}  // namespace moert_ggml
