#include <cuda_runtime.h>

#include "host/cuda/random_kernel.h"
#include "host/cuda/reduce.cuh"

namespace moert::host {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 2048;

/// The finalizer of MurmurHash3.
__device__ __forceinline__ uint64_t Mix(uint64_t v) {
  v = (v ^ v >> 33) * 0xff51afd7ed558ccdull;
  v = (v ^ v >> 33) * 0xc4ceb9fe1a85ec53ull;
  return v ^ v >> 33;
}

__global__ void RandomKernel(uint16_t* values, int64_t count, float limit, uint64_t seed) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const auto bits = static_cast<uint32_t>(Mix(seed ^ Mix(static_cast<uint64_t>(i))) >> 40);
    const float unit = (static_cast<float>(bits) + 0.5f) * 0x1p-23f - 1.0f;
    values[i] = ToBf16(limit * unit);
  }
}

}  // namespace

int LaunchRandom(uint16_t* values, int64_t count, float limit, uint64_t seed, CUstream_st* stream) {
  RandomKernel<<<kBlocks, kThreads, 0, stream>>>(values, count, limit, seed);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace moert::host
