// Which experts of a call family P multiplies (kernels/cuda/prompt/prompt_gemm.h). It depends on
// the layer and the call's tokens alone, never on what is resident (design rule 6).
#ifndef MOERT_LIB_EXEC_CUDA_PRODUCTS_PROMPT_PLAN_H_
#define MOERT_LIB_EXEC_CUDA_PRODUCTS_PROMPT_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "kernels/cuda/device_types.h"
#include "kernels/cuda/prompt/prompt_gemm.h"
#include "moert/model.h"

namespace moert::cuda {

/// Formats of a model, as this family sees them.
struct PromptFormats {
  uint32_t downs[kPromptPackings] = {};  // by the packing of gate and up: a bit a packing of down
  bool others = false;                   // some format is never multiplied here

  void Add(const DeviceFormat& format);
  bool any() const {
    return std::any_of(std::begin(downs), std::end(downs), [](uint32_t d) { return d != 0; });
  }
  /// Whether some format of gate and up, or of down, has zeros.
  bool zeros() const {
    for (int gate = 0; gate < kPromptPackings; ++gate) {
      const uint32_t both = downs[gate] != 0 ? downs[gate] | 1u << gate : 0;
      if ((both & kPromptZeros) != 0) return true;
    }
    return false;
  }
  bool bytes() const {
    return downs[PromptIndex(Packing::kW8A8)] != 0 || downs[PromptIndex(Packing::kW4A8)] != 0 ||
           downs[PromptIndex(Packing::kF8)] != 0 || downs[PromptIndex(Packing::kF8BlockF8)] != 0;
  }
};

struct PromptPlan {
  uint32_t packings = 0;        // whose formats are multiplied here; 0: none
  uint32_t of_product[2] = {};  // of those, in gate and up, in down
  bool others = false;          // some format of the model is not
  int most = 0;                 // the tiling

  bool any() const { return packings != 0; }
  /// Which rows of x its products read: quantized ones, rounded ones.
  bool bytes() const { return (of_product[0] & kPrompt8Bits) != 0; }
  bool sums() const { return (of_product[0] & kPromptZeros) != 0; }
  bool rounded() const { return (of_product[0] & ~kPrompt8Bits) != 0; }
};
/// `experts`: over which the tokens are spread, more than the layer's own in a shard. `always`:
/// however few tokens an expert has, for measurements.
PromptPlan PlanPrompt(const PromptDevice& device, const PromptFormats& formats,
                      const MoeLayerSpec& layer, int64_t tokens, int64_t experts,
                      bool always = false);

/// Units and rows of h at most, of calls of up to so many tokens.
struct PromptExtent {
  int64_t units = 0;
  int64_t h_rows = 0;
};
PromptExtent MaxPromptExtent(const MoeLayerSpec& layer, int64_t max_tokens, int64_t experts);

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_PRODUCTS_PROMPT_PLAN_H_
