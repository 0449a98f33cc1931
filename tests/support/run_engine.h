// Drives an engine over seeded hidden states and returns everything it answered.
#ifndef MOERT_TESTS_SUPPORT_RUN_ENGINE_H_
#define MOERT_TESTS_SUPPORT_RUN_ENGINE_H_

#include <memory>
#include <random>
#include <vector>

#include "moert/engine.h"

namespace moert::test {

/// Hidden states with some persistence from step to step, as decoding has.
class HiddenProcess {
 public:
  HiddenProcess(int64_t hidden, uint64_t seed) : hidden_(hidden), rng_(seed) {}
  std::vector<float> Next(int64_t rows) {
    std::normal_distribution<float> normal(0, 1);
    state_.resize(rows * hidden_, 0);
    for (float& v : state_) v = 0.7f * v + 0.7f * normal(rng_);
    return state_;
  }

 private:
  const int64_t hidden_;
  std::mt19937_64 rng_;
  std::vector<float> state_;
};

/// One step over all layers: each layer's output is added to its input, as a residual stream does.
inline absl::Status RunStep(Engine* engine, Phase phase, std::vector<float> x, int64_t rows,
                            std::vector<float>* outputs,
                            absl::Span<const int64_t> request_ids = {}) {
  const int64_t hidden = engine->model().layers[0].hidden;
  auto step = engine->BeginStep({phase, rows, request_ids});
  if (!step.ok()) return step.status();
  std::vector<float> y(x.size());
  absl::Status status;
  for (int l = 0; l < engine->model().num_layers() && status.ok(); ++l) {
    status = engine->Forward(*step, l, {x.data(), DType::kF32, rows, hidden, hidden},
                             {y.data(), DType::kF32, rows, hidden, hidden});
    if (!status.ok()) break;
    outputs->insert(outputs->end(), y.begin(), y.end());
    for (size_t i = 0; i < x.size(); ++i) x[i] = 0.8f * x[i] + y[i];
  }
  const absl::Status ended = engine->EndStep(*step);
  return status.ok() ? ended : status;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_RUN_ENGINE_H_
