// Reading and writing hidden states of any dtype of the API as fp32.
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_ELEMENT_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_ELEMENT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace moert::cuda {

__device__ __forceinline__ float ToFloat(float v) { return v; }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float ToFloat(__half v) { return __half2float(v); }

template <typename T>
__device__ __forceinline__ T FromFloat(float v);
template <>
__device__ __forceinline__ float FromFloat<float>(float v) {
  return v;
}
template <>
__device__ __forceinline__ __nv_bfloat16 FromFloat<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}
template <>
__device__ __forceinline__ __half FromFloat<__half>(float v) {
  return __float2half_rn(v);
}

/// The element type of a pointer.
template <typename P>
using ElementOf = std::remove_const_t<std::remove_pointer_t<P>>;

/// Calls f with a null pointer of the element type of a moert::DType (f32, bf16, f16).
template <typename F>
auto WithElement(int32_t dtype, F f) {
  if (dtype == 1) return f(static_cast<const __nv_bfloat16*>(nullptr));
  if (dtype == 2) return f(static_cast<const __half*>(nullptr));
  return f(static_cast<const float*>(nullptr));
}

/// Loads up to `count` of 8 values as fp32, with zeros for the rest; by 16-byte loads if all 8
/// exist and the address is aligned.
template <typename In>
__device__ __forceinline__ void LoadEight(const In* in, int count, float (&values)[8]) {
  In loaded[8];
  if (count >= 8 && reinterpret_cast<uintptr_t>(in) % 16 == 0) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(In)) / 2; ++i) {
      reinterpret_cast<uint4*>(loaded)[i] = reinterpret_cast<const uint4*>(in)[i];
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) loaded[i] = i < count ? in[i] : FromFloat<In>(0);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = ToFloat(loaded[i]);
}

/// Stores up to `count` of 8 values, likewise.
template <typename Out>
__device__ __forceinline__ void StoreEight(const float (&values)[8], int count, Out* out) {
  Out results[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) results[i] = FromFloat<Out>(values[i]);
  if (count >= 8 && reinterpret_cast<uintptr_t>(out) % 16 == 0) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(Out)) / 2; ++i) {
      reinterpret_cast<uint4*>(out)[i] = reinterpret_cast<const uint4*>(results)[i];
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) out[i] = results[i];
    }
  }
}

/// Sum over the warp in a fixed order, in every lane.
__device__ __forceinline__ float WarpSum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_ELEMENT_CUH_
