#include "toy_kernel.h"

namespace moert::test {
namespace {

constexpr double kOf = 0.5;  // kX of toy_fetch.h

__device__ double ToyOf(const ToyWeights& weights, int32_t slot, double x) {
  for (int p = 0; slot >= 0 && p < ToyWeights::kParts; ++p) {
    const auto* part = reinterpret_cast<const int8_t*>(weights.base[p] + slot * weights.stride[p]);
    double sum = 0;
    for (int64_t i = 0; i < weights.bytes[p]; ++i) sum = sum * 0.999 + x * part[i];
    x = sum * 1e-4;
  }
  return x;
}

__global__ void ToyKernel(const __grid_constant__ ToyWeights weights, const int32_t* slots,
                          double x, double* out) {
  const int pair = static_cast<int>(blockIdx.x);
  out[pair] = slots[pair] >= 0 ? ToyOf(weights, slots[pair], x) : -1;
}

__global__ void ToyRowsKernel(const __grid_constant__ ToyWeights weights, const int32_t* slots,
                              int top_k, const float* x, int cols, double of, float* rows) {
  const int pair = static_cast<int>(blockIdx.x);
  __shared__ double product;
  if (threadIdx.x == 0) product = slots[pair] >= 0 ? ToyOf(weights, slots[pair], of) : 0;
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < cols; c += static_cast<int>(blockDim.x)) {
    rows[pair * cols + c] = static_cast<float>(product) * x[pair / top_k * cols + c];
  }
}

__global__ void DelayKernel(int64_t nanoseconds) {
  int64_t begin = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

}  // namespace

cudaError_t LaunchToy(const ToyWeights& weights, const int32_t* slots, int pairs, double x,
                      double* out, cudaStream_t stream) {
  ToyKernel<<<pairs, 1, 0, stream>>>(weights, slots, x, out);
  return cudaGetLastError();
}

cudaError_t LaunchToyRows(const ToyWeights& weights, const int32_t* slots, int pairs, int top_k,
                          const float* x, int cols, float* rows, cudaStream_t stream) {
  ToyRowsKernel<<<pairs, 32, 0, stream>>>(weights, slots, top_k, x, cols, kOf, rows);
  return cudaGetLastError();
}

cudaError_t LaunchDelay(int64_t microseconds, cudaStream_t stream) {
  DelayKernel<<<1, 1, 0, stream>>>(microseconds * 1000);
  return cudaGetLastError();
}

}  // namespace moert::test
