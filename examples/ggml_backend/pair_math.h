// Element-wise operations of layer calls on the CPU, with the results of ggml's CPU backend.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_PAIR_MATH_H_
#define MOERT_EXAMPLES_GGML_BACKEND_PAIR_MATH_H_

#include <ggml.h>

#include <cstdint>

namespace moert_ggml {

/// `kind`: of a unary operation, or of a GLU.
bool KnowsPairMath(ggml_op op, int kind);

struct PairMath {
  ggml_op op;
  int kind;
  float number[2];

  /// out[i] = f(a[i], b[i]). b: null for operations of one operand.
  void Run(const float* a, const float* b, int64_t n, float* out) const;
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_PAIR_MATH_H_
