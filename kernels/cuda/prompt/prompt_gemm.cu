#include "kernels/cuda/prompt/prompt_gemm.h"
#include "kernels/cuda/prompt/prompt_launch.h"

namespace moert::cuda {
namespace {

/// Launches the product of the packing in `kOf` that has this PromptIndex.
template <Packing... kOf>
int LaunchOneOf(int index, const PromptGemmArgs& args, int product, CUstream_st* stream) {
  int error = cudaErrorInvalidValue;
  ((index == PromptIndex(kOf) ? error = LaunchPrompt<kOf>(args, product, stream) : 0), ...);
  return error;
}
constexpr auto Launch =
    LaunchOneOf<Packing::kBf16, Packing::kW8, Packing::kW4, Packing::kF8Block, Packing::kMxFp4,
                Packing::kW8A8, Packing::kW4A8, Packing::kW4Zeros, Packing::kW3, Packing::kW2,
                Packing::kF8, Packing::kF8BlockF8, Packing::kNvFp4, Packing::kW4Group>;

}  // namespace

int LaunchPromptProducts(const PromptGemmArgs& args, CUstream_st* stream) {
  int error = 0;
  const uint32_t wide =
      args.form == PromptForm::kWgmma ? kPrompt8Bits & ~kPromptQuantizes : kPrompt8Bits;
  for (int product = 0; product < 2; ++product) {
    if (product == 1 && error == 0 && (args.packings[1] & wide) != 0) {
      error = LaunchQuantizePromptH(args, stream);
    }
    if (product == 1 && error == 0 && (args.packings[1] & kPromptZeros) != 0) {
      error = LaunchSumPromptH(args, stream);
    }
    for (int p = 0; p < kPromptPackings && error == 0; ++p) {
      if (args.packings[product] >> p & 1) error = Launch(p, args, product, stream);
    }
  }
  return error;
}

}  // namespace moert::cuda
