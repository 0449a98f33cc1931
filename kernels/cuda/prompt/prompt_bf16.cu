#include "kernels/cuda/prompt/prompt_kernel.cuh"

namespace moert::cuda {

template int LaunchPrompt<Packing::kBf16>(const PromptGemmArgs& args, int product,
                                          CUstream_st* stream);

// Their code is that of their files.
extern template bool HasMmaCode<Packing::kF8>();
extern template bool HasMmaCode<Packing::kF8BlockF8>();

PromptDevice FindPromptDevice() {
  int processors = 0;
  if (FindAttribute(cudaDevAttrMultiProcessorCount, &processors) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  constexpr uint32_t kAll = (1u << kPromptPackings) - 1;
  if (HasCode(PromptGemmKernel<Packing::kBf16, true, 256, true>)) {
    return {PromptForm::kWgmma, processors, kAll};
  }
  if (!HasMmaCode<Packing::kBf16>()) return {};
  const bool e4m3 = HasMmaCode<Packing::kF8>() && HasMmaCode<Packing::kF8BlockF8>();
  return {PromptForm::kMma, 2 * processors, e4m3 ? kAll : kAll & ~kPromptE4m3};
}

}  // namespace moert::cuda
