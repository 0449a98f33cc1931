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
    place.layer = -1;
    place.buffer = ggml_backend_buft_alloc_buffer(gpu->cuda_type(), bytes);
    if (place.buffer == nullptr) return false;
  }
  return true;
}

void* Staging::Enter(Gpu* gpu, int layer) {
  Place& place = places_[layer & 1];
  if (place.layer != layer) {
    if (!gpu->stream()->Await(place.left)) return nullptr;
    place.layer = layer;
    place.there.clear();
  }
  return ggml_backend_buffer_get_base(place.buffer);
}

std::vector<int32_t> Staging::Add(int layer, std::span<const int32_t> experts) {
  std::vector<uint8_t>& there = places_[layer & 1].there;
  std::vector<int32_t> missing;
  for (const int32_t e : experts) {
    const auto at = static_cast<size_t>(e);
    if (at >= there.size()) there.resize(at + 1, 0);
    if (there[at] == 0) missing.push_back(e);
    there[at] = 1;
  }
  return missing;
}

std::span<const uint8_t> Staging::there(int layer) const {
  const Place& place = places_[layer & 1];
  if (place.layer != layer) return {};
  return place.there;
}

void Staging::Leave(ggml_backend_t backend, int layer) {
  ggml_backend_event_record(places_[layer & 1].left, backend);
}

}  // namespace moert_ggml
