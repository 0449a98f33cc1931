// Shared by the kernels of quantized weights of every instruction set. Everything here is inlined
// by force and has internal linkage, so nothing of it can be linked into other files' code.
#ifndef MOERT_KERNELS_CPU_FETCH_SCALES_H_
#define MOERT_KERNELS_CPU_FETCH_SCALES_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/block_gemm.h"

namespace moert::kernels {

// Prefetches scales (and offsets) of the next row blocks. No hardware prefetcher does so, since the
// lines are a row of scales apart.
[[gnu::always_inline]] static inline void FetchScales(const BlockGemmArgs& args, int block,
                                                      int64_t at) {
  constexpr int kRowsAhead = 32;  // a cache line
  _mm_prefetch(reinterpret_cast<const char*>(args.scales[block] + at + kRowsAhead), _MM_HINT_T0);
  if (args.offsets[block] != nullptr) {
    _mm_prefetch(reinterpret_cast<const char*>(args.offsets[block] + at + kRowsAhead), _MM_HINT_T0);
  }
}

}  // namespace moert::kernels

#endif  // MOERT_KERNELS_CPU_FETCH_SCALES_H_
