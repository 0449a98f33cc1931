// The "reference" kernel set: every other set is compared with it, and it runs on CPUs that support
// no other set. Packed activations are plain fp32 rows.
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "kernels/cpu/block_gemm.h"
#include "kernels/reference/codes.h"
#include "moert/model.h"

namespace moert::kernels {
namespace {

double Activate(Activation activation, double x) {
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

void Glu(Activation activation, const float* gate, const float* up, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(Activate(activation, gate[i]) * up[i]);
  }
}

void Pack(const float* x, int64_t valid, int64_t k16s, bool round, uint8_t* out) {
  for (int64_t k = 0; k < k16s * kPieceK; ++k) {
    float value = k < valid ? x[k] : 0.0f;
    if (round) value = RoundToBf16(value);
    std::memcpy(out + k * 4, &value, 4);
  }
}

}  // namespace

void BlockGemmBf16Reference(const BlockGemmArgs& args) {
  for (int block = 0; block < args.blocks; ++block) {
    const auto* weights = reinterpret_cast<const uint16_t*>(args.weights[block]);
    for (int column = 0; column < args.columns; ++column) {
      const auto* x = reinterpret_cast<const float*>(args.x[column]);
      float* out = args.out + (block * kMaxColumns + column) * kBlockRows;
      for (int row = 0; row < kBlockRows; ++row) {
        double sum = 0;
        for (int64_t k = 0; k < args.k16s * kPieceK; ++k) {
          sum += static_cast<double>(Bf16ToF32(weights[FragmentIndex(row, k)])) * x[k];
        }
        out[row] = static_cast<float>(sum);
      }
    }
  }
}

void PackF32Reference(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  Pack(x, valid, k16s, /*round=*/false, out);
}

void PackBf16Reference(const float* x, int64_t valid, int64_t k16s, uint8_t* out) {
  Pack(x, valid, k16s, /*round=*/true, out);
}

void GluSiluReference(const float* gate, const float* up, int64_t count, float* out) {
  Glu(Activation::kSilu, gate, up, count, out);
}

void GluGeluReference(const float* gate, const float* up, int64_t count, float* out) {
  Glu(Activation::kGelu, gate, up, count, out);
}

void GluGeluTanhReference(const float* gate, const float* up, int64_t count, float* out) {
  Glu(Activation::kGeluTanh, gate, up, count, out);
}

void GluRelu2Reference(const float* gate, const float* up, int64_t count, float* out) {
  Glu(Activation::kRelu2, gate, up, count, out);
}

}  // namespace moert::kernels
