// A small model whose weights are a formula, and what an Engine computes with it: what own_kernels,
// own_store and own_rules compare themselves with.
#ifndef EXAMPLES_TINY_MODEL_H_
#define EXAMPLES_TINY_MODEL_H_

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moert/engine.h"
#include "moert/source/host_source.h"

namespace tiny {

inline constexpr int64_t kHidden = 64;
inline constexpr int kTokens = 24;

/// In [-1, 1), exact in fp32.
inline float Value(uint32_t layer, uint32_t expert, uint32_t part, uint32_t index) {
  uint32_t h = (layer * 73856093u) ^ ((expert + 1u) * 19349663u) ^ ((part + 1u) * 83492791u) ^
               (index * 2654435761u);
  h ^= h >> 16;
  h *= 0x7feb352du;
  h ^= h >> 15;
  h *= 0x846ca68bu;
  h ^= h >> 16;
  return static_cast<float>(static_cast<int32_t>(h >> 8) - 8388608) / 8388608.0f;
}

inline absl::Status ReadWeights(const moert::WeightRead& read) {
  const float scale = read.part == moert::WeightPart::kRouter ? 1.0f : 0.125f;
  for (int64_t i = 0; i < read.rows * read.cols; ++i) {
    static_cast<float*>(read.dst)[i] =
        scale * Value(read.layer, read.expert, static_cast<uint32_t>(read.part),
                      static_cast<uint32_t>(read.first_row * read.cols + i));
  }
  return absl::OkStatus();
}

inline absl::StatusOr<std::shared_ptr<const moert::ExpertSource>> MakeSource() {
  moert::MoeModelSpec model;
  for (int l = 0; l < 3; ++l) {
    moert::MoeLayerSpec layer;
    layer.model_layer = l;
    layer.num_experts = 16;
    layer.hidden = kHidden;
    layer.intermediate = 48;
    layer.routing.top_k = 2;
    layer.routing.renormalize = true;
    model.layers.push_back(layer);
  }
  return moert::MakeHostSource("tiny", model, {ReadWeights, moert::DType::kF32, {}});
}

inline std::vector<float> Input(int token) {
  std::vector<float> x(kHidden);
  for (uint32_t i = 0; i < kHidden; ++i) x[i] = Value(99, 0, 0, token * kHidden + i);
  return x;
}

/// The gates of all layers, as a Router borrows them.
struct Gates {
  std::vector<std::vector<float>> values;
  std::vector<absl::Span<const float>> gates, biases;

  static absl::StatusOr<Gates> Read(const moert::ExpertSource& source) {
    Gates all;
    for (int l = 0; l < source.model().num_layers(); ++l) {
      auto constants = source.ReadConstants(l);
      if (!constants.ok()) return constants.status();
      all.values.push_back(std::move(constants->gate));
      all.gates.push_back(all.values.back());
      all.biases.push_back({});
    }
    return all;
  }
};

/// The residual stream behind the last layer, token after token.
inline absl::StatusOr<std::vector<float>> Outputs(moert::Engine* engine) {
  std::vector<float> outputs, y(kHidden);
  for (int token = 0; token < kTokens; ++token) {
    std::vector<float> x = Input(token);
    auto step = engine->Begin({moert::Phase::kDecode, 1});
    if (!step.ok()) return step.status();
    for (int layer = 0; layer < engine->model().num_layers(); ++layer) {
      auto status = step->Forward(layer, {x.data(), moert::DType::kF32, 1, kHidden, kHidden},
                                  {y.data(), moert::DType::kF32, 1, kHidden, kHidden});
      if (!status.ok()) return status;
      for (int64_t i = 0; i < kHidden; ++i) x[i] += y[i];
    }
    if (auto status = step->End(); !status.ok()) return status;
    outputs.insert(outputs.end(), x.begin(), x.end());
  }
  return outputs;
}

inline absl::StatusOr<std::vector<float>> EngineOutputs(
    std::shared_ptr<const moert::ExpertSource> source) {
  moert::EngineOptions options;
  options.budget = moert::Budget::Fraction(0.25);
  options.kernels = "reference";
  options.activation = moert::ActivationNumerics::kF32;
  auto engine = moert::Engine::Create(std::move(source), options);
  if (!engine.ok()) return engine.status();
  return Outputs(engine->get());
}

using Host = absl::StatusOr<std::vector<float>>(std::shared_ptr<const moert::ExpertSource>);

/// Runs a host; 0: what it computes is what an Engine computes, to the bit.
inline int CompareWithEngine(Host* host) {
  auto source = MakeSource();
  absl::Status status = source.status();
  if (status.ok()) {
    const auto own = host(*source);
    const auto engine = EngineOutputs(*source);
    status.Update(own.status());
    status.Update(engine.status());
    if (status.ok()) {
      const bool same = own->size() == engine->size() &&
                        std::memcmp(own->data(), engine->data(), own->size() * sizeof(float)) == 0;
      std::printf("%d values %s\n", static_cast<int>(own->size()),
                  same ? "are those of an Engine, to the bit" : "differ from those of an Engine");
      return same ? 0 : 1;
    }
  }
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

}  // namespace tiny

#endif  // EXAMPLES_TINY_MODEL_H_
