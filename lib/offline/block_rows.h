// The rows that pass a MoE block together.
#ifndef MOERT_LIB_OFFLINE_BLOCK_ROWS_H_
#define MOERT_LIB_OFFLINE_BLOCK_ROWS_H_

#include <functional>

#include "absl/status/status.h"
#include "checkpoint/checkpoint_experts.h"
#include "moert/model.h"
#include "moert/router.h"

namespace moert {

/// All borrowed.
struct BlockRows {
  const MoeLayerSpec& layer;
  const RoutingResult& routing;
  const float* inputs;  // [routing.tokens, hidden], like residual
  float* residual;
};

/// The weights of an expert of that block, all finite. Called by many threads at once.
using ExpertReader = std::function<absl::Status(int expert, ExpertWeights* out)>;

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_BLOCK_ROWS_H_
