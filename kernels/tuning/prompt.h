// Which products of a call family P computes (kernels/cuda/prompt/prompt_gemm.h), and in which
// tiling, by the mean number of tokens per expert. Data: measured on an H200 with Qwen3-30B-A3B's
// and Mixtral-8x7B's shapes by `moert-bench gemm`, the crossings with its --products.
#ifndef MOERT_KERNELS_TUNING_PROMPT_H_
#define MOERT_KERNELS_TUNING_PROMPT_H_

namespace moert::cuda::tuning {

/// Tokens per expert from which on family P is used, by packing: bf16, w8, w4, fp8_b128, mxfp4,
/// nvfp4, int4 with the scales and zeros of files, w8a8, w4a8, w4, w3 and w2 with zeros, w8a8_fp8,
/// fp8_b128 by fp8. At these values the times of both families cross, as interpolated between
/// measurements at 2, 3, 4, 6, 8, 12 and 16 tokens per expert; w4 with zeros is taken between w4
/// and w2.
constexpr double kPromptFrom[] = {2, 2.5, 10.5, 3, 13.5, 14.5, 18, 2, 3, 12, 9.5, 13.5, 2, 2};
/// The same for products by mma.sync, between measurements at 4, 8, 12, 16, 24, 32 and 64 tokens
/// per expert with the code of compute_89 on an H200, which has no e4m3 products by mma.sync of its
/// own. bf16's are ahead at 4.
constexpr double kMmaFrom[] = {4, 17.5, 22.5, 22, 28, 40, 31, 16.5, 24.5, 38, 21, 32, 17, 22};

/// The minimum for calls of up to kFewTokens tokens (route.h), for which family D takes fewer
/// launches and prefetches for the next layer.
constexpr double kPromptFromOfFewTokens = 8;

/// most: columns of the widest unit, for up to `tokens` tokens per expert.
struct PromptTiling {
  double tokens;
  int most;
};
/// The widest unit that registers allow for w4a8 and fp8, which sum every 128 k separately.
constexpr int kMostOfTwoSums = 160;
constexpr PromptTiling kPromptTilings[] = {{64, 64}, {150, 160}, {1e30, 256}};
constexpr PromptTiling kMmaTilings[] = {{64, 64}, {1e30, 160}};

}  // namespace moert::cuda::tuning

#endif  // MOERT_KERNELS_TUNING_PROMPT_H_
