#include "cli/bench/cuda/probe_kernels.h"

namespace moert::cli {
namespace {

__global__ void EmptyKernel() {}

__global__ void ReadKernel(const uint4* data, int64_t n, unsigned* out) {
  unsigned sum = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
#pragma unroll 4
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += stride) {
    const uint4 v = data[i];
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  // Never true, which the compiler cannot know: the reads stay.
  if (sum == 0x5a5a1234u) *out = sum;
}

}  // namespace

cudaError_t LaunchEmpty(cudaStream_t stream) {
  EmptyKernel<<<1, 32, 0, stream>>>();
  return cudaGetLastError();
}

cudaError_t LaunchRead(const void* data, int64_t bytes, void* out, cudaStream_t stream) {
  constexpr int kThreads = 512;
  static const int multiprocessors = [] {
    int device = 0, count = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count;
  }();
  ReadKernel<<<multiprocessors * 4, kThreads, 0, stream>>>(
      static_cast<const uint4*>(data), bytes / static_cast<int64_t>(sizeof(uint4)),
      static_cast<unsigned*>(out));
  return cudaGetLastError();
}

}  // namespace moert::cli
