#include "kernels/cuda/prompt/prompt_kernel.cuh"

namespace moert::cuda {

template int LaunchPrompt<Packing::kBf16>(const PromptGemmArgs& args, int product,
                                          CUstream_st* stream);

PromptDevice FindPromptDevice() {
  int processors = 0;
  cudaFuncAttributes wgmma, mma;
  if (FindAttribute(cudaDevAttrMultiProcessorCount, &processors) != cudaSuccess ||
      cudaFuncGetAttributes(&wgmma, PromptGemmKernel<Packing::kBf16, true, 256, true>) !=
          cudaSuccess ||
      cudaFuncGetAttributes(&mma, PromptMmaKernel<Packing::kBf16, true, 160>) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  // The code of one of them has nothing in it, and no use for registers.
  constexpr uint32_t kAll = (1u << kPromptPackings) - 1;
  if (wgmma.numRegs > 64) return {PromptForm::kWgmma, processors, kAll};
  if (mma.numRegs <= 64) return {};
  return {PromptForm::kMma, 2 * processors, mma.ptxVersion >= 89 ? kAll : kAll & ~kPromptE4m3};
}

}  // namespace moert::cuda
