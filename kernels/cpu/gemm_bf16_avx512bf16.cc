// bf16 weights x bf16 activations, AVX512-BF16. The operand is short, 32 bytes a piece, since its
// reads compete with those of the weights. It is spread over the lanes in registers, once for the 8
// loads of a piece. An output row is the sum of 8 of an accumulator's 16 lanes.
#if defined(__x86_64__)
#include "kernels/cpu/bf16_blocks_avx512.h"

namespace moert::kernels {
namespace {

struct Pairs {
  static constexpr int64_t kOperand = 32;  // 8 channel pairs in order
  static constexpr int kGroupsOfThree = 8;
  using Operand = __m512bh;

  [[gnu::always_inline]] static Operand Load(const uint8_t* p) {
    // Lane t * 4 + r: pair t for rows g and g + 8, then pair t + 4 for both.
    const __m512i repeat = _mm512_setr_epi32(0, 0, 4, 4, 1, 1, 5, 5, 2, 2, 6, 6, 3, 3, 7, 7);
    const __m256i pairs = _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
    return reinterpret_cast<__m512bh>(
        _mm512_permutexvar_epi32(repeat, _mm512_castsi256_si512(pairs)));
  }

  template <int C>
  [[gnu::always_inline]] static void Add(const uint8_t* w, const Operand* x, __m512* acc) {
    const auto pairs = reinterpret_cast<__m512bh>(_mm512_load_si512(w));
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) acc[c] = _mm512_dpbf16_ps(acc[c], pairs, x[c]);
  }
};

}  // namespace

void BlockGemmBf16Avx512Bf16(const BlockGemmArgs& args) { Blocks<Pairs>(args); }

}  // namespace moert::kernels
#endif
