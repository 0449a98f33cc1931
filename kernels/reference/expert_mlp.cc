#include "kernels/reference/expert_mlp.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "base/bf16.h"
#include "kernels/reference/fragment.h"

namespace moert::kernels {
namespace {

double Weight(const std::byte* record, const MatrixLayout& matrix, int64_t row, int64_t k) {
  const int64_t block = row / kRowTile;
  const int64_t index = block * kRowTile * matrix.padded_k + FragmentIndex(row % kRowTile, k);
  uint16_t bits;
  std::memcpy(&bits, record + matrix.weight_offset + index * 2, sizeof(bits));
  return Bf16ToF32(bits);
}

double Dot(const std::byte* record, const MatrixLayout& matrix, int64_t row,
           const std::vector<float>& x) {
  double sum = 0;
  for (int64_t k = 0; k < matrix.k; ++k) {
    sum += Weight(record, matrix, row, k) * x[static_cast<size_t>(k)];
  }
  return sum;
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
  }
  return 0;
}

absl::Status ReferenceExpertMlp(const std::byte* record, const RecordLayout& layout,
                                Activation activation, ActivationNumerics numerics, const float* x,
                                float* out, float* contribution) {
  if (!layout.gate.scheme.is_bf16() || !layout.up.scheme.is_bf16() ||
      !layout.down.scheme.is_bf16()) {
    return absl::UnimplementedError("the reference expert reads bf16 records only");
  }
  if (numerics == ActivationNumerics::kInt8) {
    return absl::UnimplementedError("the reference expert has no int8 activations");
  }
  const auto round = [numerics](double value) {
    const auto narrow = static_cast<float>(value);
    return numerics == ActivationNumerics::kBF16 ? RoundToBf16(narrow) : narrow;
  };
  std::vector<float> input(static_cast<size_t>(layout.gate.k));
  for (size_t i = 0; i < input.size(); ++i) input[i] = round(x[i]);
  std::vector<float> h(static_cast<size_t>(layout.gate.rows));
  for (int64_t row = 0; row < layout.gate.rows; ++row) {
    const double gate = Dot(record, layout.gate, row, input);
    const double up = Dot(record, layout.up, row, input);
    h[static_cast<size_t>(row)] = round(ApplyActivation(activation, gate) * up);
  }
  for (int64_t row = 0; row < layout.down.rows; ++row) {
    out[row] = static_cast<float>(Dot(record, layout.down, row, h));
    if (contribution == nullptr) continue;
    double squares = 0;
    for (int64_t k = 0; k < layout.down.k; ++k) {
      const double term = Weight(record, layout.down, row, k) * h[static_cast<size_t>(k)];
      squares += term * term;
    }
    contribution[row] = static_cast<float>(std::sqrt(squares));
  }
  return absl::OkStatus();
}

}  // namespace moert::kernels
