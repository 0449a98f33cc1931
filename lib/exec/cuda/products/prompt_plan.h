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

/// The formats of a model, by the packings that family P knows.
struct PromptFormats {
  uint32_t downs[kPromptPackings] = {};  // by the packing of gate and up: bits of packings of down
  bool others = false;                   // some format is never multiplied by family P

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
  uint32_t packings = 0;        // packings that family P multiplies in this call; 0: none
  uint32_t of_product[2] = {};  // those in use: in gate and up; in down
  bool others = false;          // some format of the model is left to other products
  int most = 0;                 // the most columns of a tile, one of kPromptMosts

  bool any() const { return packings != 0; }
  /// The forms of x that its products read: rows in 8 bits, sums of rows, rounded rows.
  bool bytes() const { return (of_product[0] & kPrompt8Bits) != 0; }
  bool sums() const { return (of_product[0] & kPromptZeros) != 0; }
  bool rounded() const { return (of_product[0] & ~kPrompt8Bits) != 0; }
};
/// `experts`: the number that the tokens are spread over; in a shard more than the layer's own.
/// `always`: for measurements, however few tokens an expert has.
PromptPlan PlanPrompt(const PromptDevice& device, const PromptFormats& formats,
                      const MoeLayerSpec& layer, int64_t tokens, int64_t experts,
                      bool always = false);

/// The most units, and rows of h, that calls of up to max_tokens tokens need.
struct PromptExtent {
  int64_t units = 0;
  int64_t h_rows = 0;
};
PromptExtent MaxPromptExtent(const MoeLayerSpec& layer, int64_t max_tokens, int64_t experts);

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_PRODUCTS_PROMPT_PLAN_H_
