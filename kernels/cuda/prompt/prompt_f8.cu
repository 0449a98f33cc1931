#include "kernels/cuda/prompt/prompt_kernel.cuh"

namespace moert::cuda {

template int LaunchPrompt<Packing::kF8>(const PromptGemmArgs& args, int product,
                                        CUstream_st* stream);
template bool HasMmaCode<Packing::kF8>();

}  // namespace moert::cuda
