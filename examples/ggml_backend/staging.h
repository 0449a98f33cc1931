// Room for layers of experts in GPU memory: while one layer is multiplied the next arrives.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_STAGING_H_
#define MOERT_EXAMPLES_GGML_BACKEND_STAGING_H_

#include <ggml-backend.h>
#include <moert.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu.h"

namespace moert_ggml {

/// Two places that layers use alternately. The caller holds the GPU's lock.
class Staging {
 public:
  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Makes both places at least this large. False: no memory.
  bool Reserve(Gpu* gpu, size_t bytes);
  /// The layer's place. Later work on the GPU's stream runs after the place's last use by another
  /// layer; null: that cannot be ordered.
  void* Enter(Gpu* gpu, int layer);
  /// After Enter: returns those of the experts that are not in the layer's place yet, and marks
  /// them as present.
  std::vector<int32_t> Add(int layer, std::span<const int32_t> experts);
  /// By expert, for the first experts: whether it is in the layer's place or on its way.
  std::span<const uint8_t> there(int layer) const;
  /// The slots of the layer's place, as of the last copy.
  moert_slots* slots(int layer) { return &places_[layer & 1].slots; }
  /// Invalidates the layer's place after a failed copy.
  void Forget(int layer) { places_[layer & 1].layer = -1; }
  /// Releases the place after the work that reads it.
  void Leave(ggml_backend_t backend, int layer);

 private:
  struct Place {
    ggml_backend_buffer_t buffer = nullptr;
    ggml_backend_event_t left = nullptr;
    int layer = -1;              // whose experts are there; -1: nobody's
    std::vector<uint8_t> there;  // by expert
    moert_slots slots;
  };
  Place places_[2];
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_STAGING_H_
