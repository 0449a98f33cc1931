// Shared by the kernels of imported schemes of every vector width. Everything here is inlined
// by force and has internal linkage, since files differ in the ISA that they are compiled for.
#ifndef MOERT_KERNELS_CPU_IMPORTED_CODES_H_
#define MOERT_KERNELS_CPU_IMPORTED_CODES_H_

#include <xmmintrin.h>

#include <cstdint>

#include "kernels/cpu/block_gemm.h"

namespace moert::kernels {

enum class ImportedCodes { kInt4, kE2M1, kE4M3 };

constexpr int64_t kImportedAhead = 8192;  // bytes of weights fetched ahead, kept in L1

// Number of pieces of a row block that belong to a group; the pieces after them are padding.
[[gnu::always_inline]] static inline int64_t ImportedPieces(const BlockGemmArgs& args) {
  const int64_t grouped = args.groups * args.group_k16s;
  return grouped < args.k16s ? grouped : args.k16s;
}

// The scales from the element `at` on.
[[gnu::always_inline]] static inline const uint8_t* ImportedScalesAt(const BlockGemmArgs& args,
                                                                     int block, int64_t at) {
  constexpr int64_t kWidth[] = {2, 2, 4, 1, 1};
  return args.raw_scales[block] + at * kWidth[args.scale_form];
}

// Prefetches scales (and zeros) of the next row blocks. No hardware prefetcher does so, since the
// lines are a row of scales apart.
[[gnu::always_inline]] static inline void FetchImportedScales(const BlockGemmArgs& args, int block,
                                                              int64_t at) {
  constexpr int64_t kLine = 64;
  const uint8_t* scales = ImportedScalesAt(args, block, at);
  _mm_prefetch(reinterpret_cast<const char*>(scales + kLine), _MM_HINT_T0);
  if (args.zeros[block] != nullptr) {
    _mm_prefetch(reinterpret_cast<const char*>(args.zeros[block] + at + kLine), _MM_HINT_T0);
  }
}

}  // namespace moert::kernels

#endif  // MOERT_KERNELS_CPU_IMPORTED_CODES_H_
