#include "route/grouping.h"

#include <cstddef>
#include <vector>

namespace moert {

void GroupByExpert(RoutingResult* r) {
  const int64_t pairs = r->tokens * r->top_k;
  r->counts.assign(r->num_experts, 0);
  for (const int32_t e : r->ids) {
    if (e >= 0) ++r->counts[e];
  }
  r->offsets.assign(r->num_experts + 1, 0);
  for (int e = 0; e < r->num_experts; ++e) r->offsets[e + 1] = r->offsets[e] + r->counts[e];
  r->grouped_tokens.resize(r->offsets[r->num_experts]);
  r->grouped_slots.resize(r->offsets[r->num_experts]);
  std::vector<int32_t> at(r->offsets.begin(), r->offsets.end() - 1);
  for (int64_t slot = 0; slot < pairs; ++slot) {
    if (r->ids[slot] < 0) continue;
    const int32_t i = at[r->ids[slot]]++;
    r->grouped_tokens[i] = static_cast<int32_t>(slot / r->top_k);
    r->grouped_slots[i] = static_cast<int32_t>(slot);
  }
}

void NoteOwnChoice(const LayerResidency& residency, RoutingResult* r) {
  r->mass = 0;
  for (size_t slot = 0; slot < r->ids.size(); ++slot) {
    if (r->ids[slot] >= 0) r->mass += r->weights[slot];
  }
  r->model_lookups = r->model_hits = 0;
  for (int e = 0; e < r->num_experts; ++e) {
    r->model_lookups += r->counts[e] > 0;
    r->model_hits += r->counts[e] > 0 && !residency.resident.empty() && residency.resident[e];
  }
  r->substituted = 0;
  r->mass_substituted = 0;
  r->top_score.clear();
}

}  // namespace moert
