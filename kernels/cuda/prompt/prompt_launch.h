// The products of family P of one packing, each defined in a file of its own.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_LAUNCH_H_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_LAUNCH_H_

#include "kernels/cuda/prompt/prompt_gemm.h"

namespace moert::cuda {

/// product: 0 gate and up, 1 down. 0 or a cudaError_t.
template <Packing kPacking>
int LaunchPrompt(const PromptGemmArgs& args, int product, CUstream_st* stream);

/// Whether the code that the current device runs has the packing's products by mma.sync.
template <Packing kPacking>
bool HasMmaCode();

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_LAUNCH_H_
