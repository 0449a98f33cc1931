// A host in C++ with weights of its own: a quarter of the experts in memory, eight steps of
// decoding, then all of them. examples/c_host, rust and go do the same and print the same.
#include <cstdio>
#include <vector>

#include "moert/engine.h"
#include "moert/source/host_source.h"

namespace {

constexpr int64_t kHidden = 64;

/// A formula instead of a file: in [-1, 1), exact in fp32.
float Value(uint32_t layer, uint32_t expert, uint32_t part, uint32_t index) {
  uint32_t h = (layer * 73856093u) ^ ((expert + 1u) * 19349663u) ^ ((part + 1u) * 83492791u) ^
               (index * 2654435761u);
  h ^= h >> 16;
  h *= 0x7feb352du;
  h ^= h >> 15;
  h *= 0x846ca68bu;
  h ^= h >> 16;
  return static_cast<float>(static_cast<int32_t>(h >> 8) - 8388608) / 8388608.0f;
}

/// Fills rows of a matrix whenever an expert is needed.
absl::Status ReadWeights(const moert::WeightRead& read) {
  const float scale = read.part == moert::WeightPart::kRouter ? 1.0f : 0.125f;
  for (int64_t i = 0; i < read.rows * read.cols; ++i) {
    static_cast<float*>(read.dst)[i] =
        scale * Value(read.layer, read.expert, static_cast<uint32_t>(read.part),
                      static_cast<uint32_t>(read.first_row * read.cols + i));
  }
  return absl::OkStatus();
}

absl::Status Run() {
  moert::MoeModelSpec model;
  for (int l = 0; l < 2; ++l) {
    moert::MoeLayerSpec layer;
    layer.model_layer = l;
    layer.num_experts = 8;
    layer.hidden = kHidden;
    layer.intermediate = 48;
    layer.routing.top_k = 2;
    layer.routing.renormalize = true;
    model.layers.push_back(layer);
  }
  auto source = moert::MakeHostSource("tiny", model, {ReadWeights, moert::DType::kF32, {}});
  if (!source.ok()) return source.status();

  moert::EngineOptions options;
  options.budget = moert::Budget::Fraction(0.25);
  options.clock = moert::ClockKind::kVirtual;  // the same statistics on every machine
  auto created = moert::Engine::Create(*std::move(source), options);
  if (!created.ok()) return created.status();
  moert::Engine& engine = **created;

  std::vector<float> x(kHidden), y(kHidden);
  const moert::MatrixView in{x.data(), moert::DType::kF32, 1, kHidden, kHidden};
  const moert::MutableMatrixView out{y.data(), moert::DType::kF32, 1, kHidden, kHidden};
  for (int token = 0; token < 8; ++token) {
    for (int64_t i = 0; i < kHidden; ++i) {
      x[i] = Value(99, 0, 0, static_cast<uint32_t>(token * kHidden + i));
    }
    auto step = engine.Begin({moert::Phase::kDecode, 1});
    if (!step.ok()) return step.status();
    for (int layer = 0; layer < engine.model().num_layers(); ++layer) {
      if (auto status = step->Forward(layer, in, out); !status.ok()) return status;
      for (int64_t i = 0; i < kHidden; ++i) x[i] += y[i];  // the host's residual stream
    }
    if (auto status = step->End(); !status.ok()) return status;
    std::printf("token %d: %.6f %.6f %.6f\n", token, x[0], x[1], x[2]);
  }

  const moert::EngineStats stats = engine.stats();
  std::printf("lookups %d, hits %d, loads %d, evictions %d, budget kept: %s\n",
              static_cast<int>(stats.lookups), static_cast<int>(stats.hits_resident),
              static_cast<int>(stats.loads), static_cast<int>(stats.evictions),
              stats.peak_bytes <= stats.budget_bytes ? "yes" : "no");
  const absl::Status refused = engine.SetBudget(moert::Budget::Bytes(1));
  std::printf("one byte: %s\n", absl::StatusCodeToString(refused.code()).c_str());
  return engine.SetBudget(moert::Budget::Fraction(1));  // live
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
