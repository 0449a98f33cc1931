// Stand-ins for calls of CUDA's runtime, linked into tests of the backend's host side: plain memory
// is what is pinned, and events are none. Included once a program.
#ifndef MOERT_TESTS_SUPPORT_NO_DEVICE_H_
#define MOERT_TESTS_SUPPORT_NO_DEVICE_H_

#include <cuda_runtime_api.h>

#include <cstdlib>

extern "C" cudaError_t __wrap_cudaHostAlloc(void** memory, size_t bytes, unsigned /*flags*/) {
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return *memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
extern "C" cudaError_t __wrap_cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
extern "C" cudaError_t __wrap_cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = nullptr;
  return cudaSuccess;
}

#endif  // MOERT_TESTS_SUPPORT_NO_DEVICE_H_
