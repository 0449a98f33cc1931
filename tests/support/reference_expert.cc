#include "tests/support/reference_expert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/bf16.h"
#include "base/status_macros.h"
#include "kernels/cpu/kernel_set.h"
#include "quant/f8_group.h"
#include "quant/hadamard.h"
#include "quant/packing.h"

namespace moert::test {
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

// e4m3 times a power of two for every 128 channels.
Rounded RoundGroups(const std::vector<float>& x) {
  Rounded r;
  for (size_t begin = 0; begin < x.size(); begin += kF8GroupChannels) {
    const size_t end = std::min(begin + kF8GroupChannels, x.size());
    float maximum = 0;
    for (size_t i = begin; i < end; ++i) maximum = std::max(maximum, std::fabs(x[i]));
    const int exponent = F8GroupExponent(std::bit_cast<uint32_t>(maximum));
    const double scale = exponent == kF8Zero ? 0 : std::ldexp(1.0, exponent - 127);
    for (size_t i = begin; i < end; ++i) {
      const double exact = scale == 0 ? 0 : x[i] / scale;
      const double step = F8Step(std::fabs(exact));
      r.values.push_back(scale * (std::nearbyint(exact / step) * step));
      r.steps.push_back(scale * step);
    }
  }
  return r;
}

Rounded Round(const std::vector<float>& x, const Scheme& scheme, ActivationNumerics numerics) {
  const size_t all = x.size();
  if (kernels::TakesF8Group(scheme, numerics)) return RoundGroups(x);
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

// Three channels rounded the other way, in the worst place; bf16 has more of them the more channels
// there are, and the norm of the terms measures that.
double ToleranceOf(const float* weights, const Rounded& h, bool bf16) {
  double squares = 0;
  double largest = 0;
  for (size_t i = 0; i < h.values.size(); ++i) {
    const double weight = std::fabs(weights[i]);
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

absl::StatusOr<ReferenceExpert::Matrix> ReferenceExpert::Widen(const std::byte* record,
                                                               const MatrixLayout& layout) {
  Matrix m;
  m.scheme = layout.scheme;
  m.rows = layout.rows;
  m.k = layout.k;
  MOERT_RETURN_IF_ERROR(UnpackMatrix(layout, record, &m.weights));
  if (layout.bias_offset != 0) {
    const auto* biases = reinterpret_cast<const float*>(record + layout.bias_offset);
    m.biases.assign(biases, biases + layout.rows);
  }
  return m;
}

double ReferenceExpert::Matrix::Dot(int64_t row, const std::vector<double>& x) const {
  double sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    sum += static_cast<double>(weights[row * k + i]) * x[i];
  }
  return sum;
}

double ReferenceExpert::Matrix::Product(int64_t row, const std::vector<double>& x) const {
  return Dot(row, x) + (biases.empty() ? 0.0 : biases[row]);
}

absl::StatusOr<ReferenceExpert> ReferenceExpert::Make(const std::byte* record,
                                                      const RecordLayout& layout) {
  ReferenceExpert expert;
  MOERT_ASSIGN_OR_RETURN(expert.gate_, Widen(record, layout.gate));
  MOERT_ASSIGN_OR_RETURN(expert.up_, Widen(record, layout.up));
  MOERT_ASSIGN_OR_RETURN(expert.down_, Widen(record, layout.down));
  expert.hadamard_ = layout.format.hadamard;
  return expert;
}

void ReferenceExpert::Apply(const ExpertActivation& activation, ActivationNumerics numerics,
                            const float* x, float* out, float* tolerance) const {
  std::vector<float> input(x, x + gate_.k);
  if (hadamard_) ApplyHadamard(1, gate_.k, input.data());
  const Rounded gate_x = Round(input, gate_.scheme, numerics);
  const Rounded up_x = Round(input, up_.scheme, numerics);
  std::vector<float> h(gate_.rows);
  for (int64_t row = 0; row < gate_.rows; ++row) {
    h[row] = static_cast<float>(ApplyActivation(activation, gate_.Product(row, gate_x.values),
                                                up_.Product(row, up_x.values)));
  }
  if (kernels::RoundsH(down_.scheme, hadamard_, numerics)) {
    for (float& value : h) value = RoundToBf16(value);
  }
  if (hadamard_) ApplyHadamard(1, down_.k, h.data());
  const Rounded rounded = Round(h, down_.scheme, numerics);
  const bool bf16 =
      numerics != ActivationNumerics::kF32 && down_.scheme.act_bits == 16 &&
      !kernels::TakesF8Group(down_.scheme, numerics) &&
      (down_.scheme.is_bf16() || down_.scheme.imported() || numerics == ActivationNumerics::kBF16);
  for (int64_t row = 0; row < down_.rows; ++row) {
    out[row] = static_cast<float>(down_.Product(row, rounded.values));
    if (tolerance != nullptr) {
      tolerance[row] =
          static_cast<float>(ToleranceOf(down_.weights.data() + row * down_.k, rounded, bf16));
    }
  }
}

absl::Status ReferenceExpertMlp(const std::byte* record, const RecordLayout& layout,
                                const ExpertActivation& activation, ActivationNumerics numerics,
                                const float* x, float* out, float* tolerance) {
  MOERT_ASSIGN_OR_RETURN(const ReferenceExpert expert, ReferenceExpert::Make(record, layout));
  expert.Apply(activation, numerics, x, out, tolerance);
  return absl::OkStatus();
}

}  // namespace moert::test
