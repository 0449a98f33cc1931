#include "kernels/cuda/prompt/prompt_kernel.cuh"

namespace moert::cuda {

template int LaunchPrompt<Packing::kBf16>(const PromptGemmArgs& args, int product,
                                          CUstream_st* stream);

int PromptGemmCtas() {
  int processors = 0, major = 0, minor = 0;
  if (FindAttribute(cudaDevAttrMultiProcessorCount, &processors) != cudaSuccess ||
      FindAttribute(cudaDevAttrComputeCapabilityMajor, &major) != cudaSuccess ||
      FindAttribute(cudaDevAttrComputeCapabilityMinor, &minor) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  if (major != 9 || minor != 0) return 0;
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, PromptGemmKernel<Packing::kBf16, true, 256, true>) !=
      cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  // Code for plain sm_90 has nothing in it.
  return attributes.numRegs > 64 ? processors : 0;
}

}  // namespace moert::cuda
