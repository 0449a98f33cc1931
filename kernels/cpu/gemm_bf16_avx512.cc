// bf16 weights x fp32 activations, AVX-512: weights are widened in registers (a bf16 is the high
// half of a float), even and odd channels separately. The operand is ordered so that one load
// gives, by unpacking with itself, the even and the odd channels for rows g and g + 8.
#if defined(__x86_64__)
#include "kernels/cpu/bf16_blocks_avx512.h"

namespace moert::kernels {
namespace {

struct Widened {
  static constexpr int64_t kOperand = 64;  // {2t, 2t+8, 2t+1, 2t+9} for t = 0..3, fp32
  static constexpr int kGroupsOfThree = 4;
  struct Operand {
    __m512 even, odd;
  };

  [[gnu::always_inline]] static Operand Load(const uint8_t* p) {
    const __m512 x4 = _mm512_load_ps(reinterpret_cast<const float*>(p));
    return {_mm512_unpacklo_ps(x4, x4), _mm512_unpackhi_ps(x4, x4)};
  }

  template <int C>
  [[gnu::always_inline]] static void Add(const uint8_t* w, const Operand* x, __m512* acc) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    const __m512i pair = _mm512_load_si512(w);
    const __m512 w_even = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
    const __m512 w_odd = _mm512_castsi512_ps(_mm512_and_si512(pair, high));
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) acc[c] = _mm512_fmadd_ps(w_even, x[c].even, acc[c]);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) acc[c] = _mm512_fmadd_ps(w_odd, x[c].odd, acc[c]);
  }
};

}  // namespace

void BlockGemmBf16F32Avx512(const BlockGemmArgs& args) { Blocks<Widened>(args); }

}  // namespace moert::kernels
#endif
