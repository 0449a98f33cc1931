#include "kernels/reference/expert_mlp.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/bf16.h"
#include "base/status_macros.h"
#include "quant/hadamard.h"
#include "quant/packing.h"

namespace moert::kernels {
namespace {

// A rounded row: the values that enter the product, and for each how far apart two neighbours are.
struct Rounded {
  std::vector<double> values;
  std::vector<double> steps;
};

double F8Step(double magnitude) {
  return std::ldexp(1.0, (magnitude < 0x1p-6 ? -6 : std::ilogb(magnitude)) - 3);
}

// Codes up to `limit` with one scale for each `group` channels; `f8`: e4m3 instead of integers.
Rounded Quantize(const std::vector<float>& x, size_t group, float limit, bool f8) {
  Rounded r;
  for (size_t begin = 0; begin < x.size(); begin += group) {
    const size_t end = std::min(begin + group, x.size());
    float maximum = 0;
    for (size_t i = begin; i < end; ++i) maximum = std::max(maximum, std::fabs(x[i]));
    const float scale = maximum / limit;
    const float inverse = maximum > 1e-30f ? limit / maximum : 0;
    for (size_t i = begin; i < end; ++i) {
      const double exact = std::clamp<double>(x[i] * inverse, -limit, limit);
      const double step = f8 ? F8Step(std::fabs(exact)) : 1.0;
      r.values.push_back(scale * (std::nearbyint(exact / step) * step));
      r.steps.push_back(scale * step);
    }
  }
  return r;
}

Rounded Round(const std::vector<float>& x, const Scheme& scheme, ActivationNumerics numerics) {
  const size_t all = x.size();
  if (scheme.fp8 && scheme.act_bits == 8) return Quantize(x, all, 448, true);
  if (scheme.act_bits < 16) {
    return Quantize(x, scheme.group > 0 ? 128 : all, scheme.act_bits == 8 ? 127 : 7, false);
  }
  if (numerics == ActivationNumerics::kInt8 && !scheme.is_bf16() && !scheme.imported()) {
    return Quantize(x, 128, 127, false);
  }
  Rounded r;
  for (const float value : x) {
    const bool exact = numerics == ActivationNumerics::kF32;
    r.values.push_back(exact ? value : RoundToBf16(value));
    r.steps.push_back(exact ? 0 : std::fabs(value) / 128);
  }
  return r;
}

struct Matrix {
  std::vector<float> weights;
  int64_t rows = 0;
  int64_t k = 0;
};

absl::StatusOr<Matrix> Widen(const std::byte* record, const MatrixLayout& layout) {
  Matrix m;
  m.rows = layout.rows;
  m.k = layout.k;
  MOERT_RETURN_IF_ERROR(UnpackMatrix(layout, record, &m.weights));
  return m;
}

double Dot(const Matrix& matrix, int64_t row, const std::vector<double>& x) {
  double sum = 0;
  for (int64_t k = 0; k < matrix.k; ++k) {
    sum += static_cast<double>(matrix.weights[static_cast<size_t>(row * matrix.k + k)]) *
           x[static_cast<size_t>(k)];
  }
  return sum;
}

double BiasOf(const std::byte* record, const MatrixLayout& layout, int64_t row) {
  if (layout.bias_offset == 0) return 0;
  return reinterpret_cast<const float*>(record + layout.bias_offset)[row];
}

// Three channels rounded the other way, in the worst place; bf16 has more of them the more channels
// there are, and the norm of the terms measures that.
double ToleranceOf(const Matrix& down, int64_t row, const Rounded& h, bool bf16) {
  double squares = 0;
  double largest = 0;
  for (int64_t k = 0; k < down.k; ++k) {
    const auto i = static_cast<size_t>(k);
    const double weight = std::fabs(down.weights[static_cast<size_t>(row * down.k + k)]);
    squares += weight * h.values[i] * weight * h.values[i];
    largest = std::max(largest, weight * h.steps[i]);
  }
  const double norm = std::sqrt(squares);
  return bf16 ? norm / 256 : 3 * largest + 4e-6 * norm;
}

}  // namespace

double ApplyActivation(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kGelu:
      return 0.5 * x * (1.0 + std::erf(x * 0.70710678118654752440));
    case Activation::kGeluTanh:
      return 0.5 * x * (1.0 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case Activation::kRelu2:
      return x > 0 ? x * x : 0;
  }
  return 0;
}

double ApplyActivation(const ExpertActivation& a, double gate, double up) {
  const auto f = [&a](double x) {
    return a.function == Activation::kSilu ? x / (1.0 + std::exp(-a.alpha * x))
                                           : ApplyActivation(a.function, x);
  };
  if (!a.gated) return f(gate);
  if (a.limit > 0) {
    gate = std::min<double>(gate, a.limit);
    up = std::clamp<double>(up, -a.limit, a.limit);
  }
  return f(gate) * (up + a.up_offset);
}

absl::Status ReferenceExpertMlp(const std::byte* record, const RecordLayout& layout,
                                const ExpertActivation& activation, ActivationNumerics numerics,
                                const float* x, float* out, float* tolerance) {
  MOERT_ASSIGN_OR_RETURN(const Matrix gate, Widen(record, layout.gate));
  MOERT_ASSIGN_OR_RETURN(const Matrix up, Widen(record, layout.up));
  MOERT_ASSIGN_OR_RETURN(const Matrix down, Widen(record, layout.down));
  std::vector<float> input(x, x + gate.k);
  if (layout.format.hadamard) ApplyHadamard(1, gate.k, input.data());
  const Rounded gate_x = Round(input, layout.gate.scheme, numerics);
  const Rounded up_x = Round(input, layout.up.scheme, numerics);
  std::vector<float> h(static_cast<size_t>(gate.rows));
  for (int64_t row = 0; row < gate.rows; ++row) {
    h[static_cast<size_t>(row)] = static_cast<float>(ApplyActivation(
        activation, Dot(gate, row, gate_x.values) + BiasOf(record, layout.gate, row),
        Dot(up, row, up_x.values) + BiasOf(record, layout.up, row)));
  }
  if (layout.format.hadamard) ApplyHadamard(1, down.k, h.data());
  const Rounded rounded = Round(h, layout.down.scheme, numerics);
  const bool bf16 = numerics != ActivationNumerics::kF32 && layout.down.scheme.act_bits == 16 &&
                    (layout.down.scheme.is_bf16() || layout.down.scheme.imported() ||
                     numerics == ActivationNumerics::kBF16);
  for (int64_t row = 0; row < down.rows; ++row) {
    out[row] =
        static_cast<float>(Dot(down, row, rounded.values) + BiasOf(record, layout.down, row));
    if (tolerance != nullptr) {
      tolerance[row] = static_cast<float>(ToleranceOf(down, row, rounded, bf16));
    }
  }
  return absl::OkStatus();
}

}  // namespace moert::kernels
