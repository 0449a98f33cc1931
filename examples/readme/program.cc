#include <cstdio>
#include <utility>
#include <vector>

#include "moert/engine.h"
#include "moert/source/expert_source.h"

// Sends one token's hidden state through all MoE layers.
absl::Status Run(const char* model_dir) {
  auto source = moert::OpenModel(model_dir, {});
  if (!source.ok()) return source.status();
  auto engine = moert::Engine::Create(*std::move(source), {.budget = {.fraction = 0.25}});
  if (!engine.ok()) return engine.status();
  const moert::MoeModelSpec& model = (*engine)->model();
  const int64_t hidden = model.layers[0].hidden;
  std::vector<float> x(hidden), y(hidden);
  x[0] = 1;  // comes from your attention block
  auto step = (*engine)->Begin({moert::Phase::kDecode, 1});
  if (!step.ok()) return step.status();
  for (int layer = 0; layer < model.num_layers(); ++layer) {
    absl::Status status = step->Forward(layer, {x.data(), moert::DType::kF32, 1, hidden, hidden},
                                        {y.data(), moert::DType::kF32, 1, hidden, hidden});
    if (!status.ok()) return status;
  }
  std::printf("last layer: %.3g %.3g %.3g ...\n", y[0], y[1], y[2]);
  return step->End();
}

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s MODEL_DIR\n", argv[0]), 2;
  const absl::Status status = Run(argv[1]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
