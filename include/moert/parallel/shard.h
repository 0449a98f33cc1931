// Shards of a model: see Shard in options.h.
#ifndef MOERT_PARALLEL_SHARD_H_
#define MOERT_PARALLEL_SHARD_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/model.h"
#include "moert/options.h"

namespace moert {

/// OK if the shards cover every expert, every channel of it and the shared experts of the model
/// exactly once, so that their outputs add up to the layer's. InvalidArgument names the layer, what
/// is missing or covered twice, and the shards that own it.
absl::Status CheckShards(const MoeModelSpec& model, absl::Span<const Shard> shards);

/// Shards of whole experts for `ranks` ranks, by what each expert costs: loads[l][e], 0 or more, in
/// any unit. For large batches that is the tokens routed to it; for small ones, where reading an
/// expert dominates, the calls that used it. In each layer the ranks have the same number of
/// experts, give or take one, and nearly the same load. Rank 0 has the shared experts, which cost
/// it shared_load in each layer that has some. Deterministic. InvalidArgument names what does not
/// fit.
absl::StatusOr<std::vector<Shard>> PlaceExperts(const MoeModelSpec& model,
                                                absl::Span<const std::vector<double>> loads,
                                                int ranks, double shared_load = 0);

}  // namespace moert

#endif  // MOERT_PARALLEL_SHARD_H_
