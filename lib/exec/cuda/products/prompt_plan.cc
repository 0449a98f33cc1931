#include "exec/cuda/products/prompt_plan.h"

#include <cmath>

#include "exec/cuda/route/device_routing.h"
#include "kernels/tuning/prompt.h"

namespace moert::cuda {
namespace {

constexpr uint32_t kAll = (1u << kPromptPackings) - 1;

double TokensAnExpert(const MoeLayerSpec& layer, int64_t tokens, int64_t experts) {
  return static_cast<double>(tokens * layer.routing.top_k) / static_cast<double>(experts);
}

}  // namespace

void PromptFormats::Add(const DeviceFormat& format) {
  if (IsPromptFormat(format, kAll)) {
    downs[PromptPacking(format.gate)] |= 1u << PromptPacking(format.down);
  } else {
    others = true;
  }
}

PromptPlan PlanPrompt(const PromptDevice& device, const PromptFormats& formats,
                      const MoeLayerSpec& layer, int64_t tokens, int64_t experts, bool always) {
  PromptPlan plan;
  const bool mma = device.form == PromptForm::kMma;
  // The epilogue does not have every activation function, and the kernel that makes tiles takes at
  // most kFewExperts experts.
  if (!IsPromptActivation(DeviceFunctionOf(layer.activation.function)) ||
      layer.num_experts > kFewExperts) {
    return plan;
  }
  const double mean = TokensAnExpert(layer, tokens, experts);
  const double least = tokens <= kFewTokens ? tuning::kPromptFromOfFewTokens : 0;
  uint32_t packings = 0;
  const double* const from = mma ? tuning::kMmaFrom : tuning::kPromptFrom;
  for (int p = 0; p < kPromptPackings; ++p) {
    if (always || mean >= std::max(from[p], least)) packings |= 1u << p;
  }
  packings &= device.packings;
  plan.others = formats.others;
  for (int gate = 0; gate < kPromptPackings; ++gate) {
    for (int down = 0; down < kPromptPackings; ++down) {
      if ((formats.downs[gate] >> down & 1) == 0) continue;
      const uint32_t both = 1u << gate | 1u << down;
      if ((packings & both) == both) {
        plan.of_product[0] |= 1u << gate;
        plan.of_product[1] |= 1u << down;
      } else {
        plan.others = true;
      }
    }
  }
  if (plan.of_product[0] != 0) plan.packings = packings;
  const auto* tiling = mma ? tuning::kMmaTilings : tuning::kPromptTilings;
  while (mean > tiling->tokens) ++tiling;
  plan.most = tiling->most;
  constexpr uint32_t kTwoSums = 1u << PromptIndex(Packing::kW4A8) | 1u << PromptIndex(Packing::kF8);
  if (((plan.of_product[0] | plan.of_product[1]) & kTwoSums) != 0) {
    plan.most = std::min(plan.most, tuning::kMostOfTwoSums);
  }
  // By wgmma, fp8 by fp8 has only the two smallest tilings. bf16 has both of them too; all packings
  // have the smallest.
  constexpr uint32_t kTall = kPromptQuantizes | 1u << PromptIndex(Packing::kBf16);
  const uint32_t used = plan.of_product[0] | plan.of_product[1];
  if (!mma && (used & kPromptQuantizes) != 0 && plan.most > kPromptMosts[0]) {
    plan.most = kPromptMosts[(used & ~kTall) == 0 ? 1 : 0];
  }
  return plan;
}

PromptExtent MaxPromptExtent(const MoeLayerSpec& layer, int64_t max_tokens, int64_t experts) {
  PromptExtent extent;
  for (const tuning::PromptTiling& tiling : tuning::kPromptTilings) {
    const double most =
        std::ceil(tiling.tokens * static_cast<double>(experts) / layer.routing.top_k) + 1;
    const int64_t tokens =
        most < static_cast<double>(max_tokens) ? static_cast<int64_t>(most) : max_tokens;
    extent.units = std::max(
        extent.units, MaxPromptUnits(tokens, layer.routing.top_k, layer.num_experts, tiling.most));
  }
  extent.units = std::max(extent.units, MaxPromptUnits(max_tokens, layer.routing.top_k,
                                                       layer.num_experts, kPromptMosts[0]));
  extent.h_rows = MaxPromptRows(max_tokens, layer.routing.top_k, layer.num_experts);
  return extent;
}

}  // namespace moert::cuda
