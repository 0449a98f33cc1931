// Which products of a call are family P's (kernels/cuda/prompt/prompt_gemm.h), and in which tiling,
// by the mean of tokens an expert. Data: measured on an H200 with Qwen3-30B-A3B's and
// Mixtral-8x7B's shapes by `moert-bench gemm`, the crossings by its --products.
#ifndef MOERT_KERNELS_TUNING_PROMPT_H_
#define MOERT_KERNELS_TUNING_PROMPT_H_

namespace moert::cuda::tuning {

/// From so many tokens an expert on, by packing: bf16, w8, w4, fp8_b128, mxfp4, nvfp4, int4 with
/// the scales and zeros of files, w8a8, w4a8, w4, w3 and w2 with zeros, w8a8_fp8, fp8_b128 by fp8.
/// Where the times of both families cross, between what was measured at 2, 3, 4, 6, 8, 12 and 16
/// tokens an expert; w4 with zeros between w4 and w2.
constexpr double kPromptFrom[] = {2, 2.5, 10.5, 3, 13.5, 14.5, 18, 2, 3, 12, 9.5, 13.5, 2, 2};
/// The same of products by mma.sync, between what was measured at 4, 8, 12, 16, 24, 32 and 64 tokens
/// an expert with the code of compute_89 on an H200, which has no e4m3 products by mma.sync of its
/// own. bf16's are ahead at 4.
constexpr double kMmaFrom[] = {4, 17.5, 22.5, 22, 28, 40, 31, 16.5, 24.5, 38, 21, 32, 17, 22};

/// At least so many in calls of up to kFewTokens tokens (route.h): family D's take fewer launches
/// and prefetch for the next layer.
constexpr double kPromptFromOfFewTokens = 8;

/// Columns of the widest unit up to so many tokens an expert.
struct PromptTiling {
  double tokens;
  int most;
};
/// The width that w4a8 and fp8 have registers for, which add the sums of every 128 k to others.
constexpr int kMostOfTwoSums = 160;
constexpr PromptTiling kPromptTilings[] = {{64, 64}, {150, 160}, {1e30, 256}};
constexpr PromptTiling kMmaTilings[] = {{64, 64}, {1e30, 160}};

}  // namespace moert::cuda::tuning

#endif  // MOERT_KERNELS_TUNING_PROMPT_H_
