// Which products of a call family P takes, by how the device multiplies.
#include "exec/cuda/products/prompt_plan.h"

#include "moert/model.h"
#include "support/catch.h"

namespace moert::test {
namespace {

using cuda::PlanPrompt;
using cuda::PromptForm;
using cuda::PromptFormats;
using cuda::PromptPlan;

constexpr uint32_t kAll = (1u << cuda::kPromptPackings) - 1;

MoeLayerSpec Layer() {
  MoeLayerSpec layer;
  layer.num_experts = 128;
  layer.routing.top_k = 8;
  return layer;
}

/// A format of each packing, whose matrices all have it.
PromptFormats EveryPacking() {
  PromptFormats formats;
  for (int p = 0; p < cuda::kPromptPackings; ++p) formats.downs[p] = 1u << p;
  return formats;
}

PromptPlan Plan(PromptForm form, const PromptFormats& formats, int64_t tokens,
                uint32_t packings = kAll) {
  return PlanPrompt({form, 132, packings}, formats, Layer(), tokens, /*experts=*/128);
}

TEST_CASE("without wgmma units have at most 64 or 160 tokens") {
  for (const int64_t tokens : {1, 33, 256, 1000, 1025, 8192, 100000}) {
    CAPTURE(tokens);
    const PromptPlan plan = Plan(PromptForm::kMma, EveryPacking(), tokens);
    CHECK(plan.most == (tokens * 8 <= 64 * 128 ? 64 : 160));
    CHECK(plan.any() == (tokens >= 256));
    CHECK(plan.others == (tokens < 1000));
  }
}

TEST_CASE("code without a product leaves its formats to others") {
  for (const int64_t tokens : {512, 8192}) {
    CAPTURE(tokens);
    const PromptPlan plan =
        Plan(PromptForm::kMma, EveryPacking(), tokens, kAll & ~cuda::kPromptE4m3);
    CHECK(plan.any());
    CHECK(plan.others);
    CHECK((plan.packings & cuda::kPromptE4m3) == 0);
    CHECK(((plan.of_product[0] | plan.of_product[1]) & cuda::kPromptE4m3) == 0);
    CHECK((Plan(PromptForm::kMma, EveryPacking(), tokens).of_product[1] & cuda::kPromptE4m3) ==
          cuda::kPromptE4m3);
  }
}

TEST_CASE("many tokens are all family P's where it has every packing") {
  PromptFormats bf16;
  bf16.downs[0] = 1;
  for (const PromptForm form : {PromptForm::kMma, PromptForm::kWgmma}) {
    const PromptPlan plan = Plan(form, bf16, 8192);
    CHECK(plan.of_product[0] == 1);
    CHECK(plan.of_product[1] == 1);
    CHECK_FALSE(plan.others);
    CHECK_FALSE(Plan(form, bf16, 8).any());
  }
  const PromptPlan plan = Plan(PromptForm::kWgmma, EveryPacking(), 8192);
  CHECK(plan.of_product[0] == kAll);
  CHECK_FALSE(plan.others);
}

}  // namespace
}  // namespace moert::test
