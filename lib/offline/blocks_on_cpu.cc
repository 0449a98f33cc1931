#include <cmath>
#include <utility>

#include "offline/expert_mlp.h"
#include "offline/sensitivity.h"
#include "quant/hadamard.h"

namespace moert::offline {
namespace {

class CpuBlocks final : public ExpertBlocks {
 public:
  CpuBlocks(const MoeLayerSpec& layer, const SensitivitySettings& settings,
            const ExpertMatrices& weights, const Compute& compute, const Floats& x)
      : layer_(layer),
        settings_(settings),
        w_(weights),
        rows_(static_cast<int64_t>(x.size()) / layer.hidden),
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

  absl::Status Prepare(absl::Span<const float> token_weights) override {
    token_weights_ = token_weights;
    if (settings_.method == QuantMethod::kGptq) {
      x_factor_ = FactorInputs(x_, layer_.hidden, token_weights_);
      h_factor_ = FactorInputs(stored_h_, layer_.intermediate, token_weights_);
    }
    return absl::OkStatus();
  }

  absl::Status Begin(const RecordLayout& layout) override {
    layout_ = layout;
    rounded_x_ = x_;
    rounded_h_ = stored_h_;
    RoundActivations(layout.gate.scheme, layer_.hidden, &rounded_x_);
    RoundActivations(layout.gate.scheme, layer_.intermediate, &rounded_h_);
    return absl::OkStatus();
  }

  absl::StatusOr<double> Change(Projection block) override {
    switch (block) {
      case Projection::kGate:
        other_gate_ = ProductOfX(layout_.gate, w_.gate);
        return NormOf(ChangeOfH(Combine(other_gate_, up_)));
      case Projection::kUp:
        other_up_ = ProductOfX(layout_.up, w_.up);
        return NormOf(ChangeOfH(Combine(gate_, other_up_)));
      case Projection::kDown:
        break;
    }
    y_change_ = Product(Quantized(layout_.down, h_factor_, w_.down), layer_.hidden,
                        layer_.intermediate, rounded_h_);
    for (size_t i = 0; i < y_change_.size(); ++i) y_change_[i] -= y_[i];
    return NormOf(y_change_);
  }

  absl::Status LastChanges(int64_t rows, ExpertChanges* changes) override {
    const auto count = static_cast<size_t>(rows * layer_.hidden);
    changes->gate_up = ChangeOfH(Combine(other_gate_, other_up_));
    changes->gate_up.resize(count);
    changes->down = std::move(y_change_);
    changes->down.resize(count);
    return absl::OkStatus();
  }

  absl::Status Outputs(Floats* y) override {
    *y = y_;
    return absl::OkStatus();
  }

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
    Floats y(rows_ * out);
    MatMul(compute_, w, out, in, x.data(), rows_, y.data());
    return y;
  }
  Floats ProductOfX(const MatrixLayout& layout, const std::vector<float>& weights) const {
    return Product(Quantized(layout, x_factor_, weights), layer_.intermediate, layer_.hidden,
                   rounded_x_);
  }
  Floats Combine(const Floats& gate, const Floats& up) const {
    Floats h(gate.size());
    for (size_t i = 0; i < h.size(); ++i) h[i] = Activate(layer_.activation, gate[i], up[i]);
    return h;
  }
  // The change of the output if h is replaced: down is linear.
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
      const double weight = token_weights_[t];
      total += weight * weight * row;
    }
    return std::sqrt(total);
  }

  const MoeLayerSpec& layer_;
  const SensitivitySettings& settings_;
  ExpertMatrices w_;  // in the domain they are stored in, as are x_ and stored_h_
  absl::Span<const float> token_weights_;
  const int64_t rows_;
  const Compute compute_;
  Floats x_, gate_, up_, h_, stored_h_, y_;
  absl::StatusOr<GptqFactor> x_factor_ = absl::FailedPreconditionError("unused");
  absl::StatusOr<GptqFactor> h_factor_ = absl::FailedPreconditionError("unused");
  // The scheme's layout.
  RecordLayout layout_;
  Floats rounded_x_, rounded_h_, other_gate_, other_up_, y_change_;
};

}  // namespace

std::unique_ptr<ExpertBlocks> BlocksOnCpu(const MoeLayerSpec& layer,
                                          const SensitivitySettings& settings,
                                          const ExpertMatrices& weights, const Compute& compute,
                                          const Floats& x) {
  return std::make_unique<CpuBlocks>(layer, settings, weights, compute, x);
}

}  // namespace moert::offline
