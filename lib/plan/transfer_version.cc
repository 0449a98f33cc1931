#include "plan/transfer_version.h"

#include <numeric>

namespace moert {

int TransferVersion(PrecisionPolicy* policy, const PolicyContext& context, ExpertKey key,
                    absl::Span<const int32_t> counts, bool prefetch, int num_versions,
                    int64_t* fallbacks, int resident) {
  const int unchanged = resident < 0 ? 0 : resident;
  if (policy == nullptr || num_versions < 2) return unchanged;
  TransferSnapshot snapshot;
  snapshot.context = context;
  snapshot.key = key;
  snapshot.prefetch = prefetch;
  snapshot.resident = resident;
  snapshot.tokens = counts[key.expert];
  snapshot.layer_tokens = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  snapshot.num_versions = num_versions;
  snapshot.layer_counts = counts;
  const int version = policy->TransferVersion(snapshot);
  if (version >= 0 && version < num_versions) return version;
  ++*fallbacks;
  return unchanged;
}

}  // namespace moert
