// Few tokens: the choice of experts and their products in one launch.
//
// Every CTA chooses for itself: with few tokens that takes less time than to hand over one CTA's
// choice. The arithmetic is that of LaunchTopK and LaunchProducts, bit for bit.
#ifndef MOERT_KERNELS_CUDA_FEW_FEW_PRODUCTS_H_
#define MOERT_KERNELS_CUDA_FEW_FEW_PRODUCTS_H_

#include <cstdint>

#include "kernels/cuda/few/group_gemm.h"
#include "kernels/cuda/route/route.h"

struct CUstream_st;

namespace moert::cuda {

constexpr int kChoosingTokens = 8;
constexpr int kChoosingPairs = 80;

/// Whether LaunchFewProducts takes such a call.
constexpr bool ProductsChoose(int64_t tokens, int top_k, int experts) {
  return tokens <= kChoosingTokens && tokens * top_k <= kChoosingPairs && top_k <= kMaxTopK &&
         experts <= kFewExperts;
}

/// The most tiles that such a call has: one per expert, as no expert has more tokens than a tile.
constexpr int32_t FewTiles(int32_t tokens, int top_k, int experts, bool shared) {
  const int32_t pairs = tokens * top_k;
  return (pairs < experts ? pairs : experts) + (shared ? 1 : 0);
}

struct FewProductsArgs {
  DeviceRouting routing;
  int32_t tokens = 0;
  const float* logits = nullptr;  // [tokens, E]
  float* scores = nullptr;        // as LaunchTopK leaves them; not `logits`
  int32_t* ids = nullptr;
  float* weights = nullptr;
  SelectionTally* tally = nullptr;  // as LaunchGroup
  const DeviceFormat* formats = nullptr;
  int32_t num_formats = 0;
  int32_t shared = 0;                     // whether there is a shared expert
  const ExpertHandle* handles = nullptr;  // [experts + 1]; the last is the shared expert
  /// All but `pairs` and `top_k`, which the launch computes. Only `ready` and `ticket` of the table
  /// are read; the launch before this one sets them to zero (GateZeros). `h` is plain bf16 in every
  /// format.
  GroupGemmArgs gemm;
};
/// 0 or a cudaError_t.
int LaunchFewProducts(const FewProductsArgs& args, CUstream_st* stream);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_FEW_FEW_PRODUCTS_H_
