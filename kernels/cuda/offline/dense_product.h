// Products of fp32 matrices in device memory, in fp32. Every element is one sum of fused
// multiply-adds in ascending order of the inner dimension, as with the CPU's vectors
// (lib/offline/dense_lanes.h).
#ifndef MOERT_KERNELS_CUDA_OFFLINE_DENSE_PRODUCT_H_
#define MOERT_KERNELS_CUDA_OFFLINE_DENSE_PRODUCT_H_

#include <cstdint>

struct CUstream_st;

namespace moert::cuda {

/// Row-major.
struct DenseMatrix {
  const float* data;
  int64_t stride;  // of rows, in elements
};

/// c[m, n] = a[m, k] b[n, k]^T. `c` is dense. A cudaError_t, like those below.
int LaunchProduct(const DenseMatrix& a, const DenseMatrix& b, float* c, int64_t m, int64_t n,
                  int64_t k, CUstream_st* stream);

/// c[m, n] += a[m, k] b[k, n]; rows of c are `stride` apart.
int LaunchAddProduct(const DenseMatrix& a, const DenseMatrix& b, float* c, int64_t stride,
                     int64_t m, int64_t n, int64_t k, CUstream_st* stream);

/// Second moments, as InputMoments (lib/offline/gptq.h) adds them up: h[k, k], of which the lower
/// triangle is written, = sum over tokens of (w x)(w x)^T. x: [tokens, k]; w: [tokens].
int LaunchMoments(const float* x, const float* w, int64_t tokens, int64_t k, double* h,
                  CUstream_st* stream);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_OFFLINE_DENSE_PRODUCT_H_
