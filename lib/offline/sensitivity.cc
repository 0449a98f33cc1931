#include "offline/sensitivity.h"

#include <cmath>

#include "base/status_macros.h"
#include "offline/activation_rounding.h"
#include "quant/hadamard.h"

namespace moert::offline {
namespace {

class Expert {
 public:
  Expert(const MoeLayerSpec& layer, const SensitivitySettings& settings, ExpertMatrices weights,
         absl::Span<const float> token_weights, const Compute& compute, const Floats& x)
      : layer_(layer),
        settings_(settings),
        w_(std::move(weights)),
        token_weights_(token_weights),
        rows_(static_cast<int64_t>(token_weights.size())),
        compute_(compute),
        x_(x) {
    if (settings_.hadamard) {
      ApplyHadamard(layer_.intermediate, layer_.hidden, w_.gate.data());
      ApplyHadamard(layer_.intermediate, layer_.hidden, w_.up.data());
      ApplyHadamard(layer_.hidden, layer_.intermediate, w_.down.data());
      ApplyHadamard(rows_, layer_.hidden, x_.data());
    }
    gate_ = Product(w_.gate, layer_.intermediate, layer_.hidden, x_);
    up_ = Product(w_.up, layer_.intermediate, layer_.hidden, x_);
    h_ = Combine(gate_, up_);
    stored_h_ = h_;
    Transform(&stored_h_);
    y_ = Product(w_.down, layer_.hidden, layer_.intermediate, stored_h_);
  }

  absl::StatusOr<ExpertChanges> Changes() const {
    const size_t count = settings_.schemes.size();
    ExpertChanges changes;
    std::vector<double>& delta = changes.delta;
    delta.assign(3 * count, 0.0);
    if (rows_ == 0 || count == 0) return changes;
    absl::StatusOr<GptqFactor> x_factor = absl::FailedPreconditionError("unused");
    absl::StatusOr<GptqFactor> h_factor = x_factor;
    if (settings_.method == QuantMethod::kGptq) {
      x_factor = FactorInputs(x_, layer_.hidden, token_weights_);
      h_factor = FactorInputs(stored_h_, layer_.intermediate, token_weights_);
    }
    for (size_t k = 0; k < count; ++k) {
      const Scheme& scheme = settings_.schemes[k];
      if (scheme.is_bf16()) continue;
      MOERT_ASSIGN_OR_RETURN(const RecordLayout layout,
                             MakeRecordLayout(layer_.hidden, layer_.intermediate,
                                              ExpertFormat::Uniform(scheme, settings_.hadamard)));
      Floats x = x_, h = stored_h_;
      RoundActivations(scheme, layer_.hidden, &x);
      RoundActivations(scheme, layer_.intermediate, &h);
      const Floats gate =
          Product(Quantized(layout.gate, x_factor, w_.gate), layer_.intermediate, layer_.hidden, x);
      delta[k] = NormOf(ChangeOfH(Combine(gate, up_)));
      const Floats up =
          Product(Quantized(layout.up, x_factor, w_.up), layer_.intermediate, layer_.hidden, x);
      delta[count + k] = NormOf(ChangeOfH(Combine(gate_, up)));
      Floats y =
          Product(Quantized(layout.down, h_factor, w_.down), layer_.hidden, layer_.intermediate, h);
      for (size_t i = 0; i < y.size(); ++i) y[i] -= y_[i];
      delta[2 * count + k] = NormOf(y);
      if (static_cast<int>(k) == settings_.probe) {
        changes.gate_up = ChangeOfH(Combine(gate, up));
        changes.down = std::move(y);
      }
    }
    for (const double d : delta) {
      if (!std::isfinite(d)) {
        return absl::InvalidArgumentError("an activation or weight is not finite");
      }
    }
    return changes;
  }

  const Floats& output() const { return y_; }

 private:
  void Transform(Floats* h) const {
    if (settings_.hadamard) ApplyHadamard(rows_, layer_.intermediate, h->data());
  }
  std::vector<float> Quantized(const MatrixLayout& layout, const absl::StatusOr<GptqFactor>& factor,
                               const std::vector<float>& weights) const {
    return Dequantize(layout.scheme,
                      QuantizeMatrix(layout, settings_.method, factor, weights, settings_.device));
  }
  Floats Product(const std::vector<float>& w, int64_t out, int64_t in, const Floats& x) const {
    Floats y(static_cast<size_t>(rows_ * out));
    MatMul(compute_, w, out, in, x.data(), rows_, y.data());
    return y;
  }
  Floats Combine(const Floats& gate, const Floats& up) const {
    Floats h(gate.size());
    for (size_t i = 0; i < h.size(); ++i) h[i] = Activate(layer_.activation, gate[i], up[i]);
    return h;
  }
  // The change of the output when h is another one: down is linear.
  Floats ChangeOfH(Floats h) const {
    for (size_t i = 0; i < h.size(); ++i) h[i] -= h_[i];
    Transform(&h);
    return Product(w_.down, layer_.hidden, layer_.intermediate, h);
  }
  double NormOf(const Floats& y) const {
    double total = 0;
    size_t i = 0;
    for (int64_t t = 0; t < rows_; ++t) {
      double row = 0;
      for (int64_t c = 0; c < layer_.hidden; ++c, ++i) row += double{y[i]} * y[i];
      const double weight = token_weights_[static_cast<size_t>(t)];
      total += weight * weight * row;
    }
    return std::sqrt(total);
  }

  const MoeLayerSpec& layer_;
  const SensitivitySettings& settings_;
  ExpertMatrices w_;  // in the domain they are stored in, as are x_ and stored_h_
  const absl::Span<const float> token_weights_;
  const int64_t rows_;
  const Compute compute_;
  Floats x_, gate_, up_, h_, stored_h_, y_;
};

}  // namespace

absl::StatusOr<ExpertChanges> ExpertSensitivity(const MoeLayerSpec& layer,
                                                const SensitivitySettings& settings,
                                                ExpertMatrices weights,
                                                absl::Span<const float> token_weights,
                                                const Compute& compute, Floats* x) {
  const Expert expert(layer, settings, std::move(weights), token_weights, compute, *x);
  MOERT_ASSIGN_OR_RETURN(ExpertChanges changes, expert.Changes());
  *x = expert.output();
  return changes;
}

}  // namespace moert::offline
