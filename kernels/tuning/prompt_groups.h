// How family P's warp groups share a tile (kernels/cuda/prompt/prompt_gemm.h).
// Data: measured on an H200 with Qwen3-30B-A3B's shape by `moert-bench gemm`.
#ifndef MOERT_KERNELS_TUNING_PROMPT_GROUPS_H_
#define MOERT_KERNELS_TUNING_PROMPT_GROUPS_H_

namespace moert::cuda::tuning {

/// Warp groups that multiply a tile of a unit of up to 64 columns, by packing (PromptIndex): four
/// that have 64 rows of weights each, or two of 128. Four lack registers for the scale groups of
/// int4 files, and take more time for nvfp4.
constexpr int kPromptGroupsOfFew[] = {4, 4, 4, 4, 4, 2, 2, 4, 4, 4, 4, 4, 4, 4};

}  // namespace moert::cuda::tuning

#endif  // MOERT_KERNELS_TUNING_PROMPT_GROUPS_H_
