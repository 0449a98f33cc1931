// How family P's warp groups share a tile, and its launches a device (kernels/cuda/prompt_gemm.h).
// Data: measured on an H200 with Qwen3-30B-A3B's shape by `moert-bench gemm`.
#ifndef MOERT_KERNELS_TUNING_PROMPT_GROUPS_H_
#define MOERT_KERNELS_TUNING_PROMPT_GROUPS_H_

namespace moert::cuda::tuning {

/// Warp groups that multiply a tile of a unit of up to 64 columns, by packing (PromptIndex): four
/// that have 64 rows of weights each, or two of 128. Four have no registers for the groups of int4
/// files, and take more time in nvfp4.
constexpr int kPromptGroupsOfFew[] = {4, 4, 4, 4, 4, 2, 2, 4, 4, 4, 4, 4, 4};

/// How the launches of a product run that has several packings: one behind the other (0), into one
/// another (1), side by side (2).
constexpr int kPromptLaunches = 2;

/// What a tile takes, by packing: launches of a product share the multiprocessors by it.
/// Microseconds of uniform calls of 512 and 8,192 tokens, for units of up to 64 columns and for
/// larger ones.
struct PromptTileCosts {
  float of[13];
};
constexpr PromptTileCosts kPromptTileCosts[2] = {
    {{299, 196, 154, 190, 174, 205, 205, 192, 131, 217, 217, 217, 198}},
    {{1282, 1362, 1227, 1343, 1167, 1123, 1300, 1034, 1309, 1674, 1674, 1938, 1229}}};

}  // namespace moert::cuda::tuning

#endif  // MOERT_KERNELS_TUNING_PROMPT_GROUPS_H_
