// Which experts tokens used behind which of the layer before, counted on the device: the rule of
// activation-path (strategies/activation_path.cc). What the host counts, it keeps for itself.
#ifndef MOERT_KERNELS_CUDA_ROUTE_EXPERT_PATHS_H_
#define MOERT_KERNELS_CUDA_ROUTE_EXPERT_PATHS_H_

#include <cstdint>

#include "kernels/cuda/device_types.h"

struct CUstream_st;

namespace moert::cuda {

/// The layer call that was routed last.
struct PathCall {
  int32_t layer = -1;
  int32_t tokens = 0;
  int32_t top_k = 0;
  int32_t most = 1;  // experts that are predicted for the next layer
};

/// Floats of a table of those who followed: of each expert one for each of the next layer, and
/// their sum behind them. Whole numbers, as exact as floats have them.
MOERT_HOST_DEVICE inline int64_t PathFloats(int experts, int next_experts) {
  return static_cast<int64_t>(experts) * (next_experts + 1);
}

/// All pointers are device memory.
struct ExpertPathsArgs {
  int32_t layer = 0;
  int32_t experts = 0;              // of it
  int32_t next_experts = 0;         // 0: it is the last
  int32_t tokens = 0;               // at most kFewTokens
  int32_t top_k = 1;                //
  int32_t width = 100;              // percent of the active experts
  const int32_t* ids = nullptr;     // [tokens, top_k]; -1: none
  const int32_t* counts = nullptr;  // [experts]
  PathCall* last = nullptr;         // becomes this one
  int32_t* last_ids = nullptr;      // likewise
  float* behind = nullptr;          // the table of the layer before; null: this is the first
  const float* paths = nullptr;     // this layer's; null: it is the last
  float* scores = nullptr;          // [next_experts] receives how much each is expected
};

/// Counts who followed whom, if the call before was the layer before's, of as many tokens; then
/// scores the next layer's experts. For layers of up to kFewExperts experts. Returns 0 or a
/// cudaError_t.
int LaunchExpertPaths(const ExpertPathsArgs& args, CUstream_st* stream);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_ROUTE_EXPERT_PATHS_H_
