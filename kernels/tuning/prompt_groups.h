// How family P's kernels share a tile (kernels/cuda/prompt_gemm.h). Data, for sm_90a.
#ifndef MOERT_KERNELS_TUNING_PROMPT_GROUPS_H_
#define MOERT_KERNELS_TUNING_PROMPT_GROUPS_H_

namespace moert::cuda::tuning {

/// Warp groups that multiply a tile of a unit of up to 64 columns, by packing (PromptIndex): four
/// that have 64 rows of weights each, or two of 128. Four have no registers for the groups of int4
/// files.
constexpr int kPromptGroupsOfFew[] = {4, 4, 4, 4, 4, 4, 2, 4, 4, 4, 4, 4, 4};

}  // namespace moert::cuda::tuning

#endif  // MOERT_KERNELS_TUNING_PROMPT_GROUPS_H_
