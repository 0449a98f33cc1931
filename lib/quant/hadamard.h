// The block Hadamard transform that makes weights and activations incoherent before they are
// quantized (QuIP, QuaRot; docs/reference/layout.md): outliers of single channels are spread over a
// block of 128, so that a group's range is used better.
//
// A block of channels x becomes H D x: D fixed signs, H the normalized Hadamard matrix. The
// transform is orthogonal, so a row of weights that is transformed like the activations gives the
// same dot product: W x = (W D H) (H D x).
#ifndef MOERT_LIB_QUANT_HADAMARD_H_
#define MOERT_LIB_QUANT_HADAMARD_H_

#include <cstdint>

namespace moert {

inline constexpr int64_t kMaxHadamardBlock = 128;

/// Number of channels that are transformed together: the largest power of two that divides k, at
/// most 128.
constexpr int64_t HadamardBlock(int64_t k) {
  const int64_t power = k & -k;
  return power < kMaxHadamardBlock ? power : kMaxHadamardBlock;
}

/// The sign of channel i of every block, i < kMaxHadamardBlock: part of the format.
float HadamardSign(int64_t i);

/// Transforms `rows` rows of k channels in place, row-major.
void ApplyHadamard(int64_t rows, int64_t k, float* values);

}  // namespace moert

#endif  // MOERT_LIB_QUANT_HADAMARD_H_
