#include <cuda_runtime.h>

#include "trap_kernel.h"

namespace moert::test {
namespace {

__global__ void Trap() { __trap(); }

}  // namespace

int LaunchTrap(CUstream_st* stream) {
  Trap<<<1, 1, 0, stream>>>();
  return cudaGetLastError();
}

}  // namespace moert::test
