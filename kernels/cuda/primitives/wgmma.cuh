// wgmma (sm_90a): D += A B of 64 rows, 16 k and N columns of bf16 with sums in fp32 (int8: 32 k,
// exact sums in int32; e4m3: 32 k), A in registers (as for mma.m16n8k16 and m16n8k32, a warp 16
// rows), B in shared memory: [columns][64 k, int8 128] in rows of 128 bytes that are swizzled, so
// 16-byte piece c of row r lies at c ^ (r % 8). Every row block of 8 columns begins at a multiple
// of 1024 bytes.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_WGMMA_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_WGMMA_CUH_

#include <cstdint>

namespace moert::cuda {

/// Describes 16 k of B; the next 16 are 2 further.
__device__ __forceinline__ uint64_t OperandDescriptor(uint32_t shared_address) {
  return uint64_t{(shared_address & 0x3ffffu) >> 4} | uint64_t{1} << 16 | uint64_t{64} << 32 |
         uint64_t{1} << 62;
}
/// Required before the first product after a change of its registers or shared memory.
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending groups are under way.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving uses of d across this place.
template <int kFloats>
__device__ __forceinline__ void PinRegisters(float (&d)[kFloats]) {
#pragma unroll
  for (int i = 0; i < kFloats; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kInts>
__device__ __forceinline__ void PinRegisters(int32_t (&d)[kInts]) {
#pragma unroll
  for (int i = 0; i < kInts; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

// Register lists: the names of 8, 16, ... of them, and their operands of constraint C.
#define MOERT_R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define MOERT_R8 "%8, %9, %10, %11, %12, %13, %14, %15"
#define MOERT_R16 "%16, %17, %18, %19, %20, %21, %22, %23"
#define MOERT_R24 "%24, %25, %26, %27, %28, %29, %30, %31"
#define MOERT_R32 "%32, %33, %34, %35, %36, %37, %38, %39"
#define MOERT_R40 "%40, %41, %42, %43, %44, %45, %46, %47"
#define MOERT_R48 "%48, %49, %50, %51, %52, %53, %54, %55"
#define MOERT_R56 "%56, %57, %58, %59, %60, %61, %62, %63"
#define MOERT_R64 "%64, %65, %66, %67, %68, %69, %70, %71"
#define MOERT_R72 "%72, %73, %74, %75, %76, %77, %78, %79"
#define MOERT_R80 "%80, %81, %82, %83, %84, %85, %86, %87"
#define MOERT_R88 "%88, %89, %90, %91, %92, %93, %94, %95"
#define MOERT_R96 "%96, %97, %98, %99, %100, %101, %102, %103"
#define MOERT_R104 "%104, %105, %106, %107, %108, %109, %110, %111"
#define MOERT_R112 "%112, %113, %114, %115, %116, %117, %118, %119"
#define MOERT_R120 "%120, %121, %122, %123, %124, %125, %126, %127"
#define MOERT_R8TO(a, b) MOERT_R##a ", " MOERT_R##b
#define MOERT_LIST8 MOERT_R0
#define MOERT_LIST16 MOERT_R8TO(0, 8)
#define MOERT_LIST12 MOERT_R0 ", %8, %9, %10, %11"
#define MOERT_LIST20 MOERT_LIST16 ", %16, %17, %18, %19"
#define MOERT_LIST24 MOERT_LIST16 ", " MOERT_R16
#define MOERT_LIST32 MOERT_LIST16 ", " MOERT_R8TO(16, 24)
#define MOERT_LIST36 MOERT_LIST32 ", %32, %33, %34, %35"
#define MOERT_LIST48 MOERT_LIST32 ", " MOERT_R8TO(32, 40)
#define MOERT_LIST52 MOERT_LIST48 ", %48, %49, %50, %51"
#define MOERT_LIST56 MOERT_LIST48 ", " MOERT_R48
#define MOERT_LIST64 MOERT_LIST48 ", " MOERT_R8TO(48, 56)
#define MOERT_LIST72 MOERT_LIST64 ", " MOERT_R64
#define MOERT_LIST80 MOERT_LIST64 ", " MOERT_R8TO(64, 72)
#define MOERT_LIST96 MOERT_LIST80 ", " MOERT_R8TO(80, 88)
#define MOERT_LIST128 MOERT_LIST96 ", " MOERT_R8TO(96, 104) ", " MOERT_R8TO(112, 120)
#define MOERT_D8(C, i) \
  C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3]), C(d[i + 4]), C(d[i + 5]), C(d[i + 6]), C(d[i + 7])
#define MOERT_D4(C, i) C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3])
#define MOERT_D12(C, i) MOERT_D8(C, i), MOERT_D4(C, i + 8)
#define MOERT_D16(C, i) MOERT_D8(C, i), MOERT_D8(C, i + 8)
#define MOERT_D20(C, i) MOERT_D16(C, i), MOERT_D4(C, i + 16)
#define MOERT_D24(C, i) MOERT_D16(C, i), MOERT_D8(C, i + 16)
#define MOERT_D32(C, i) MOERT_D16(C, i), MOERT_D16(C, i + 16)
#define MOERT_D36(C, i) MOERT_D32(C, i), MOERT_D4(C, i + 32)
#define MOERT_D48(C, i) MOERT_D32(C, i), MOERT_D16(C, i + 32)
#define MOERT_D52(C, i) MOERT_D48(C, i), MOERT_D4(C, i + 48)
#define MOERT_D56(C, i) MOERT_D48(C, i), MOERT_D8(C, i + 48)
#define MOERT_D64(C, i) MOERT_D32(C, i), MOERT_D32(C, i + 32)
#define MOERT_D72(C, i) MOERT_D64(C, i), MOERT_D8(C, i + 64)
#define MOERT_D80(C, i) MOERT_D64(C, i), MOERT_D16(C, i + 64)
#define MOERT_D96(C, i) MOERT_D64(C, i), MOERT_D32(C, i + 64)
#define MOERT_D128(C, i) MOERT_D64(C, i), MOERT_D64(C, i + 64)

template <int kColumns>
__device__ __forceinline__ void Wgmma(float (&d)[kColumns / 2], const uint32_t (&a)[4], uint64_t b);
/// Multiplies int8, 32 k; the next 32 of B are 2 further.
template <int kColumns>
__device__ __forceinline__ void Wgmma(int32_t (&d)[kColumns / 2], const uint32_t (&a)[4],
                                      uint64_t b);

/// Multiplies e4m3 with sums in fp32, 32 k. The product is added to d, or replaces it.
template <int kColumns>
__device__ __forceinline__ void WgmmaF8(float (&d)[kColumns / 2], const uint32_t (&a)[4],
                                        uint64_t b, bool adds);

/// For N columns: M = N / 2 registers of sums. The other operands are given by their register
/// names.
#define MOERT_WGMMA(N, M, type, C, kind, rest, a0, a1, a2, a3, b0)                           \
  template <>                                                                                \
  __device__ __forceinline__ void Wgmma<N>(type(&d)[M], const uint32_t(&a)[4], uint64_t b) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N kind " {" MOERT_LIST##M              \
                 "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b0 rest                             \
                 : MOERT_D##M(C, 0)                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                      \
  }
#define MOERT_WGMMA_BF16(N, M, ...) \
  MOERT_WGMMA(N, M, float, "+f", "k16.f32.bf16.bf16", ", 1, 1, 1, 0;", __VA_ARGS__)
#define MOERT_WGMMA_INT8(N, M, ...) \
  MOERT_WGMMA(N, M, int32_t, "+r", "k32.s32.s8.s8", ", 1;", __VA_ARGS__)

#define MOERT_WGMMA_F8(N, M, a0, a1, a2, a3, b0, p)                                               \
  template <>                                                                                     \
  __device__ __forceinline__ void WgmmaF8<N>(float(&d)[M], const uint32_t(&a)[4], uint64_t b,     \
                                             bool adds) {                                         \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " p                                      \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" MOERT_LIST##M \
                 "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b0 ", adds, 1, 1;\n}"                    \
                 : MOERT_D##M("+f", 0)                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                            \
                   "r"(static_cast<int>(adds)));                                                  \
  }

MOERT_WGMMA_BF16(24, 12, "%12", "%13", "%14", "%15", "%16")
MOERT_WGMMA_BF16(32, 16, "%16", "%17", "%18", "%19", "%20")
MOERT_WGMMA_BF16(40, 20, "%20", "%21", "%22", "%23", "%24")
MOERT_WGMMA_BF16(64, 32, "%32", "%33", "%34", "%35", "%36")
MOERT_WGMMA_BF16(72, 36, "%36", "%37", "%38", "%39", "%40")
MOERT_WGMMA_BF16(104, 52, "%52", "%53", "%54", "%55", "%56")
MOERT_WGMMA_BF16(112, 56, "%56", "%57", "%58", "%59", "%60")
MOERT_WGMMA_BF16(128, 64, "%64", "%65", "%66", "%67", "%68")
MOERT_WGMMA_BF16(144, 72, "%72", "%73", "%74", "%75", "%76")
MOERT_WGMMA_BF16(160, 80, "%80", "%81", "%82", "%83", "%84")
MOERT_WGMMA_BF16(192, 96, "%96", "%97", "%98", "%99", "%100")
MOERT_WGMMA_BF16(256, 128, "%128", "%129", "%130", "%131", "%132")
MOERT_WGMMA_INT8(24, 12, "%12", "%13", "%14", "%15", "%16")
MOERT_WGMMA_INT8(32, 16, "%16", "%17", "%18", "%19", "%20")
MOERT_WGMMA_INT8(48, 24, "%24", "%25", "%26", "%27", "%28")
MOERT_WGMMA_INT8(64, 32, "%32", "%33", "%34", "%35", "%36")
MOERT_WGMMA_INT8(128, 64, "%64", "%65", "%66", "%67", "%68")
MOERT_WGMMA_INT8(144, 72, "%72", "%73", "%74", "%75", "%76")
MOERT_WGMMA_INT8(160, 80, "%80", "%81", "%82", "%83", "%84")
MOERT_WGMMA_INT8(192, 96, "%96", "%97", "%98", "%99", "%100")
MOERT_WGMMA_INT8(256, 128, "%128", "%129", "%130", "%131", "%132")

MOERT_WGMMA_F8(24, 12, "%12", "%13", "%14", "%15", "%16", "%17")
MOERT_WGMMA_F8(32, 16, "%16", "%17", "%18", "%19", "%20", "%21")
MOERT_WGMMA_F8(40, 20, "%20", "%21", "%22", "%23", "%24", "%25")
MOERT_WGMMA_F8(64, 32, "%32", "%33", "%34", "%35", "%36", "%37")
MOERT_WGMMA_F8(72, 36, "%36", "%37", "%38", "%39", "%40", "%41")
MOERT_WGMMA_F8(104, 52, "%52", "%53", "%54", "%55", "%56", "%57")
MOERT_WGMMA_F8(112, 56, "%56", "%57", "%58", "%59", "%60", "%61")
MOERT_WGMMA_F8(128, 64, "%64", "%65", "%66", "%67", "%68", "%69")
MOERT_WGMMA_F8(144, 72, "%72", "%73", "%74", "%75", "%76", "%77")
MOERT_WGMMA_F8(160, 80, "%80", "%81", "%82", "%83", "%84", "%85")

#undef MOERT_WGMMA_F8
#undef MOERT_WGMMA_BF16
#undef MOERT_WGMMA_INT8
#undef MOERT_WGMMA
#undef MOERT_LIST8
#undef MOERT_LIST16
#undef MOERT_LIST24
#undef MOERT_LIST32
#undef MOERT_LIST48
#undef MOERT_LIST64
#undef MOERT_LIST80
#undef MOERT_LIST96
#undef MOERT_LIST128
#undef MOERT_LIST12
#undef MOERT_LIST20
#undef MOERT_LIST72
#undef MOERT_LIST36
#undef MOERT_LIST52
#undef MOERT_LIST56
#undef MOERT_D4
#undef MOERT_D12
#undef MOERT_D20
#undef MOERT_D72
#undef MOERT_D36
#undef MOERT_D52
#undef MOERT_D56
#undef MOERT_D8
#undef MOERT_D16
#undef MOERT_D24
#undef MOERT_D32
#undef MOERT_D48
#undef MOERT_D64
#undef MOERT_D80
#undef MOERT_D96
#undef MOERT_D128
#undef MOERT_R8TO
#undef MOERT_R0
#undef MOERT_R8
#undef MOERT_R16
#undef MOERT_R24
#undef MOERT_R32
#undef MOERT_R40
#undef MOERT_R48
#undef MOERT_R56
#undef MOERT_R64
#undef MOERT_R72
#undef MOERT_R80
#undef MOERT_R88
#undef MOERT_R96
#undef MOERT_R104
#undef MOERT_R112
#undef MOERT_R120

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_WGMMA_CUH_
