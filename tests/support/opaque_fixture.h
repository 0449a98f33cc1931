// Opaque experts of three parts and a toy kernel over them: what hosts with kernels of their own
// do.
#ifndef MOERT_TESTS_SUPPORT_OPAQUE_FIXTURE_H_
#define MOERT_TESTS_SUPPORT_OPAQUE_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "moert/engine.h"
#include "moert/source/opaque_source.h"

namespace moert::test {

/// Layers of different record sizes, experts contiguous by part, as tensors of a GGUF are.
struct OpaqueModel {
  static constexpr int kLayers = 3, kExperts = 12, kTopK = 2, kHidden = 16;

  MoeModelSpec spec;
  std::vector<std::vector<std::vector<std::byte>>> data;  // [layer][part][expert * bytes]

  static int64_t PartBytes(int layer, int part) { return 3000 + 2500 * layer + 210 * part; }

  explicit OpaqueModel(uint64_t seed = 7) {
    std::mt19937_64 random(seed);
    for (int l = 0; l < kLayers; ++l) {
      MoeLayerSpec layer;
      layer.model_layer = l;
      layer.num_experts = kExperts;
      layer.hidden = kHidden;
      layer.intermediate = 32;
      layer.routing.kind = RoutingKind::kExternal;
      layer.routing.top_k = kTopK;
      spec.layers.push_back(layer);
      std::vector<std::vector<std::byte>> parts;
      for (int p = 0; p < 3; ++p) {
        std::vector<std::byte> bytes(static_cast<size_t>(kExperts * PartBytes(l, p)));
        for (std::byte& b : bytes) b = static_cast<std::byte>(random());
        parts.push_back(std::move(bytes));
      }
      data.push_back(std::move(parts));
    }
  }

  const std::byte* At(int layer, int part, int expert) const {
    return data[layer][part].data() + expert * PartBytes(layer, part);
  }

  /// Where the bytes lie is left out.
  OpaqueWeights Sizes() const {
    OpaqueWeights weights;
    for (int l = 0; l < kLayers; ++l) {
      std::vector<OpaquePart> parts(3);
      for (int p = 0; p < 3; ++p) {
        parts[p].bytes = PartBytes(l, p);
        parts[p].alignment = 32 << p;
      }
      weights.layers.push_back(std::move(parts));
    }
    return weights;
  }
  OpaqueWeights InMemory() const {
    OpaqueWeights weights = Sizes();
    for (int l = 0; l < kLayers; ++l) {
      for (int p = 0; p < 3; ++p) weights.layers[l][p].memory = data[l][p].data();
    }
    return weights;
  }
  OpaqueWeights ByCallback() const {
    OpaqueWeights weights = Sizes();
    weights.read = [this](const OpaqueRead& read) {
      std::memcpy(read.dst, At(read.layer, read.part, read.expert),
                  static_cast<size_t>(read.bytes));
      return absl::OkStatus();
    };
    return weights;
  }
};

/// The host's product of one part: any order of additions will do, as long as it is one.
inline double Toy(const std::byte* part, int64_t bytes, double x) {
  double sum = 0;
  for (int64_t i = 0; i < bytes; ++i) {
    sum = sum * 0.999 + x * static_cast<double>(static_cast<int8_t>(part[i]));
  }
  return sum;
}

/// Over all weights.
inline double Expected(const OpaqueModel& model, int layer, int expert, double x) {
  for (int p = 0; p < 3; ++p) {
    x = Toy(model.At(layer, p, expert), OpaqueModel::PartBytes(layer, p), x) * 1e-4;
  }
  return x;
}

/// Over slots.
inline double OverSlots(const SlotView& view, int32_t slot, double x) {
  for (const SlotView::Part& part : view.parts) {
    x = Toy(part.base + slot * part.stride, part.bytes, x) * 1e-4;
  }
  return x;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_OPAQUE_FIXTURE_H_
