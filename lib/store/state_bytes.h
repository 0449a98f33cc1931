// Sums for Policy::StateBytes.
#ifndef MOERT_LIB_STORE_STATE_BYTES_H_
#define MOERT_LIB_STORE_STATE_BYTES_H_

#include <cstdint>

#include "moert/policy.h"

namespace moert {

/// A vector that grew to n elements held at most so many times their bytes, during its last move.
inline constexpr int64_t kGrowth = 3;

/// `bytes` for every expert of the model.
inline int64_t PerExpert(const PolicyScope& scope, int64_t bytes) {
  return scope.model->total_experts() * bytes;
}
/// `bytes` for every expert of the largest layer.
inline int64_t PerLayerExpert(const PolicyScope& scope, int64_t bytes) {
  return int64_t{scope.model->max_experts()} * bytes;
}
/// `bytes` for every (token, expert) pair of a call.
inline int64_t PerPair(const PolicyScope& scope, int64_t bytes) {
  int64_t most = 0;
  for (const MoeLayerSpec& layer : scope.model->layers) {
    most = most < layer.routing.top_k ? layer.routing.top_k : most;
  }
  return scope.max_tokens * most * bytes;
}
/// Bytes of the list that PrefetchPolicy::Rank returns.
inline int64_t RankedBytes(const PolicyScope& scope) {
  return PerLayerExpert(scope, kGrowth * int64_t{sizeof(PrefetchCandidate)});
}

}  // namespace moert

#endif  // MOERT_LIB_STORE_STATE_BYTES_H_
