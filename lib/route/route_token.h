// The parts of RouteToken that the expert-cache rule and executors share with it.
#ifndef MOERT_LIB_ROUTE_ROUTE_TOKEN_H_
#define MOERT_LIB_ROUTE_ROUTE_TOKEN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "moert/model.h"

namespace moert {

/// The k highest of `values` (there must be at least k), highest first, among equals the lower
/// index first. Comparisons with NaN are false: the ids are distinct and in range whatever the
/// values.
void TopK(absl::Span<const float> values, int k, int32_t* ids);

/// Sets keys[e] = -inf for the experts of groups that a group-limited spec does not select. keys
/// [E]: scores plus selection bias.
void MaskUnselectedGroups(const RoutingSpec& spec, absl::Span<float> keys);

/// Refuses token ids that a layer cannot be routed by.
absl::Status CheckTokenIds(int layer, const RoutingSpec& spec, int64_t tokens,
                           absl::Span<const int32_t> token_ids);

/// Applies the model's normalization and scaling to weights [k], the raw scores of the chosen
/// experts. Not for sparsemixer, whose weights are not a function of the scores.
void NormalizeWeights(const RoutingSpec& spec, absl::Span<float> weights);

/// Computes the scores [E] of all experts and the weights [k] of the given `ids`, for layers whose
/// experts follow from token ids. Not for sparsemixer.
void WeighChosen(const RoutingSpec& spec, absl::Span<const float> logits, float* scores,
                 const int32_t* ids, float* weights);

}  // namespace moert

#endif  // MOERT_LIB_ROUTE_ROUTE_TOKEN_H_
