#include "kernels/cuda/prompt/prompt_gemm.h"
#include "kernels/cuda/prompt/prompt_launch.h"

namespace moert::cuda {
namespace {

int Launch(int index, const PromptGemmArgs& args, int product, CUstream_st* stream) {
  switch (index) {
    case PromptIndex(Packing::kBf16):
      return LaunchPrompt<Packing::kBf16>(args, product, stream);
    case PromptIndex(Packing::kW8):
      return LaunchPrompt<Packing::kW8>(args, product, stream);
    case PromptIndex(Packing::kW4):
      return LaunchPrompt<Packing::kW4>(args, product, stream);
    case PromptIndex(Packing::kF8Block):
      return LaunchPrompt<Packing::kF8Block>(args, product, stream);
    case PromptIndex(Packing::kMxFp4):
      return LaunchPrompt<Packing::kMxFp4>(args, product, stream);
    case PromptIndex(Packing::kW8A8):
      return LaunchPrompt<Packing::kW8A8>(args, product, stream);
    case PromptIndex(Packing::kW4A8):
      return LaunchPrompt<Packing::kW4A8>(args, product, stream);
    case PromptIndex(Packing::kW4Zeros):
      return LaunchPrompt<Packing::kW4Zeros>(args, product, stream);
    case PromptIndex(Packing::kW3):
      return LaunchPrompt<Packing::kW3>(args, product, stream);
    case PromptIndex(Packing::kW2):
      return LaunchPrompt<Packing::kW2>(args, product, stream);
    case PromptIndex(Packing::kF8):
      return LaunchPrompt<Packing::kF8>(args, product, stream);
    case PromptIndex(Packing::kF8BlockF8):
      return LaunchPrompt<Packing::kF8BlockF8>(args, product, stream);
    case PromptIndex(Packing::kNvFp4):
      return LaunchPrompt<Packing::kNvFp4>(args, product, stream);
    default:
      return LaunchPrompt<Packing::kW4Group>(args, product, stream);
  }
}

}  // namespace

int LaunchPromptProducts(const PromptGemmArgs& args, CUstream_st* stream) {
  int error = 0;
  for (int product = 0; product < 2; ++product) {
    if (product == 1 && error == 0 && (args.packings[1] & kPrompt8Bits & ~kPromptQuantizes) != 0) {
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
