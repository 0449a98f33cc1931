#include "pair_math.h"

#include <algorithm>
#include <cmath>

namespace moert_ggml {
namespace {

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
float Gelu(float x) {
  constexpr float kRoot = 0.79788456080286535587989211986876f, kCubed = 0.044715f;
  return 0.5f * x * (1.0f + std::tanh(kRoot * x * (1.0f + kCubed * x * x)));
}
float GeluErf(float x) {
  constexpr float kRoot = 0.70710678118654752440084436210484f;
  return 0.5f * x * (1.0f + std::erf(x * kRoot));
}
float GeluQuick(float x) { return x * (1.0f / (1.0f + std::exp(-1.702f * x))); }

template <typename Function>
void ForAll(int64_t n, float* out, const Function& function) {
  for (int64_t i = 0; i < n; ++i) out[i] = function(i);
}

void Glu(const PairMath& math, const float* a, const float* b, int64_t n, float* out) {
  const float alpha = math.number[0], limit = math.number[1];
  switch (math.kind) {
    case GGML_GLU_OP_REGLU:
      return ForAll(n, out, [=](int64_t i) { return a[i] > 0 ? a[i] * b[i] : 0.0f; });
    case GGML_GLU_OP_GEGLU:
      return ForAll(n, out, [=](int64_t i) { return Gelu(a[i]) * b[i]; });
    case GGML_GLU_OP_SWIGLU:
      return ForAll(n, out, [=](int64_t i) { return a[i] * Sigmoid(a[i]) * b[i]; });
    case GGML_GLU_OP_SWIGLU_OAI:
      return ForAll(n, out, [=](int64_t i) {
        const float x = std::min(a[i], limit), y = std::clamp(b[i], -limit, limit);
        return x / (1.0f + std::exp(alpha * -x)) * (y + 1.0f);
      });
    case GGML_GLU_OP_GEGLU_ERF:
      return ForAll(n, out, [=](int64_t i) { return GeluErf(a[i]) * b[i]; });
    case GGML_GLU_OP_GEGLU_QUICK:
      return ForAll(n, out, [=](int64_t i) { return GeluQuick(a[i]) * b[i]; });
    case GGML_GLU_OP_SWIGLU_CLAMP:
      return ForAll(n, out, [=](int64_t i) {
        const float x = std::min(a[i], limit), y = std::clamp(b[i], -limit, limit);
        return x * Sigmoid(x) * y;
      });
  }
}

void Unary(int kind, const float* a, int64_t n, float* out) {
  switch (kind) {
    case GGML_UNARY_OP_SILU:
      return ForAll(n, out, [=](int64_t i) { return a[i] * Sigmoid(a[i]); });
    case GGML_UNARY_OP_GELU:
      return ForAll(n, out, [=](int64_t i) { return Gelu(a[i]); });
    case GGML_UNARY_OP_GELU_ERF:
      return ForAll(n, out, [=](int64_t i) { return GeluErf(a[i]); });
    case GGML_UNARY_OP_GELU_QUICK:
      return ForAll(n, out, [=](int64_t i) { return GeluQuick(a[i]); });
    case GGML_UNARY_OP_RELU:
      return ForAll(n, out, [=](int64_t i) { return std::max(a[i], 0.0f); });
    case GGML_UNARY_OP_SIGMOID:
      return ForAll(n, out, [=](int64_t i) { return Sigmoid(a[i]); });
    case GGML_UNARY_OP_TANH:
      return ForAll(n, out, [=](int64_t i) { return std::tanh(a[i]); });
  }
}

}  // namespace

bool KnowsPairMath(ggml_op op, int kind) {
  switch (op) {
    case GGML_OP_GLU:
      return kind >= GGML_GLU_OP_REGLU && kind <= GGML_GLU_OP_SWIGLU_CLAMP;
    case GGML_OP_UNARY:
      return kind == GGML_UNARY_OP_SILU || kind == GGML_UNARY_OP_GELU ||
             kind == GGML_UNARY_OP_GELU_ERF || kind == GGML_UNARY_OP_GELU_QUICK ||
             kind == GGML_UNARY_OP_RELU || kind == GGML_UNARY_OP_SIGMOID ||
             kind == GGML_UNARY_OP_TANH;
    case GGML_OP_CLAMP:
    case GGML_OP_SCALE:
    case GGML_OP_SQR:
    case GGML_OP_ADD:
    case GGML_OP_MUL:
      return true;
    default:
      return false;
  }
}

void PairMath::Run(const float* a, const float* b, int64_t n, float* out) const {
  const float first = number[0], second = number[1];
  switch (op) {
    case GGML_OP_GLU:
      return Glu(*this, a, b, n, out);
    case GGML_OP_UNARY:
      return Unary(kind, a, n, out);
    case GGML_OP_CLAMP:
      return ForAll(n, out, [=](int64_t i) { return std::clamp(a[i], first, second); });
    case GGML_OP_SCALE:
      return ForAll(n, out, [=](int64_t i) { return a[i] * first + second; });
    case GGML_OP_SQR:
      return ForAll(n, out, [=](int64_t i) { return a[i] * a[i]; });
    case GGML_OP_ADD:
      return ForAll(n, out, [=](int64_t i) { return a[i] + b[i]; });
    case GGML_OP_MUL:
      return ForAll(n, out, [=](int64_t i) { return a[i] * b[i]; });
    default:
      return;
  }
}

}  // namespace moert_ggml
