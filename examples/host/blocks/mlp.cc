#include "host/blocks/mlp.h"

#include <algorithm>
#include <cmath>

#include "util/status_macros.h"

namespace moert::host {

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

float Activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kRelu2:
      return x > 0 ? x * x : 0.0f;
    case Activation::kSilu:
      return x / (1.0f + std::exp(-x));
    case Activation::kGelu:
      return 0.5f * x * (1.0f + std::erf(x * 0.70710678118654752f));
    case Activation::kGeluTanh: {
      const float inner = 0.79788456080286536f * (x + 0.044715f * x * x * x);
      return 0.5f * x * (1.0f + std::tanh(inner));
    }
  }
  return 0.0f;
}

float Activate(const ExpertActivation& activation, float gate, float up) {
  if (activation.limit > 0) {
    gate = std::min(gate, activation.limit);
    up = std::clamp(up, -activation.limit, activation.limit);
  }
  const float activated = Activate(activation.function, activation.alpha * gate) / activation.alpha;
  return activated * (up + activation.up_offset);
}

absl::StatusOr<Mlp> Mlp::Load(const Checkpoint& checkpoint, const QuantizationConfig& form,
                              const std::string& name, int64_t hidden, int64_t intermediate,
                              const ExpertActivation& activation) {
  Mlp mlp;
  mlp.activation_ = activation;
  MOERT_ASSIGN_OR_RETURN(
      mlp.gate_, Linear::Load(checkpoint, form, name + ".gate_proj", intermediate, hidden, false));
  MOERT_ASSIGN_OR_RETURN(
      mlp.up_, Linear::Load(checkpoint, form, name + ".up_proj", intermediate, hidden, false));
  MOERT_ASSIGN_OR_RETURN(
      mlp.down_, Linear::Load(checkpoint, form, name + ".down_proj", hidden, intermediate, false));
  return mlp;
}

void Mlp::Forward(ThreadPool* pool, const float* x, int64_t rows, float* out) {
  gated_.resize(rows * gate_.out());
  upped_.resize(rows * gate_.out());
  gate_.Forward(pool, x, rows, gated_.data());
  up_.Forward(pool, x, rows, upped_.data());
  for (size_t i = 0; i < gated_.size(); ++i) {
    gated_[i] = Activate(activation_, gated_[i], upped_[i]);
  }
  down_.Forward(pool, gated_.data(), rows, out);
}

}  // namespace moert::host
