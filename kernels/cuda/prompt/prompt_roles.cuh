// The roles of the warps of a CTA of family P, and their registers.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_ROLES_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_ROLES_CUH_

#include "kernels/cuda/prompt/prompt_gemm.h"

namespace moert::cuda {

constexpr int kGatherWarps = 2;
/// Roles of the producer warps, whose indices follow those of the consumers.
enum PromptRole : int { kWeightWarp, kScheduleWarp, kGatherWarp, kHelperWarp = 4 };
/// A CTA has four producer warps, or eight where tiles have few columns and so take little time:
/// the other four help to copy weights.
MOERT_HOST_DEVICE constexpr int PromptProducers(int most) { return most == 64 ? 8 : 4; }
/// Consumer threads of a CTA (four warps per group), and all of its threads.
MOERT_HOST_DEVICE constexpr int PromptConsumers(int groups) { return 128 * groups; }
MOERT_HOST_DEVICE constexpr int PromptThreads(int groups, int most) {
  return PromptConsumers(groups) + 32 * PromptProducers(most);
}
/// Number of warps that help to copy weights, and the role of the first. The gather warps do so in
/// the product of down, where there is nothing to gather.
MOERT_HOST_DEVICE constexpr int PromptHelpers(bool gate_up, int most) {
  return most == 64 ? 4 : gate_up ? 0 : kGatherWarps;
}
MOERT_HOST_DEVICE constexpr int FirstHelper(int most) {
  return most == 64 ? kHelperWarp : kGatherWarp;
}
/// Registers of a thread by role. Together they must not exceed the registers that the CTA is
/// launched with, else consumers wait forever for theirs (setmaxnreg).
MOERT_HOST_DEVICE constexpr int ProducerRegisters(int groups) { return groups == 4 ? 32 : 56; }
MOERT_HOST_DEVICE constexpr int ConsumerRegisters(int groups, int most) {
  return groups == 4 ? 104 : most == 64 ? 200 : 224;
}
MOERT_HOST_DEVICE constexpr bool RegistersFit(int groups, int most) {
  const int threads = PromptThreads(groups, most);
  return ProducerRegisters(groups) * (threads - PromptConsumers(groups)) +
             ConsumerRegisters(groups, most) * PromptConsumers(groups) <=
         65536 / threads / 8 * 8 * threads;
}
static_assert(RegistersFit(4, 64) && RegistersFit(2, 64) && RegistersFit(2, 160) &&
              RegistersFit(2, 256));

#if defined(__CUDA_ARCH__) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MOERT_PROMPT_PRODUCTS 1
#endif

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_ROLES_CUH_
