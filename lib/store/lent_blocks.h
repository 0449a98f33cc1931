// Blocks of a store while somebody else, a device, decides which experts are in them.
#ifndef MOERT_LIB_STORE_LENT_BLOCKS_H_
#define MOERT_LIB_STORE_LENT_BLOCKS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "moert/model.h"
#include "rules/expert_use.h"

namespace moert {

/// Distinct experts that a token chooses in a layer, at most.
inline int ExpertsOfAToken(const MoeLayerSpec& layer) {
  return std::min(layer.routing.top_k, layer.num_experts);
}

/// Whether the device serves a fetch that names so many experts of a layer: each needs a slot.
/// `lent`: those of the loan; negative: nothing is lent yet, and the layer counts on its capacity
/// and on `least` (VersionedStore::LeastLent).
inline bool ServesFetch(int64_t ids, int64_t lent, int capacity, int least) {
  return ids <= (lent >= 0 ? lent : std::max(capacity, least));
}

/// A block of a layer while somebody else decides who is in it.
struct LentSlot {
  int32_t block = -1;
  int32_t expert = -1;    // -1: nobody
  int64_t last_used = 0;  // of the expert, as VictimCandidate has them
  int32_t tokens = 0;
};
struct LentLayer {
  int64_t tick = 0;  // of the last layer call
  std::vector<LentSlot> slots;
  // The residency policy evicts by these (CachePolicy::LendUse): calls that it has seen, and how
  // many experts a call brings, on average.
  int64_t calls = 0;
  double inserted = 1;
  std::vector<ExpertUse> use;  // [E], by worth
  std::vector<float> scores;   // [ResidencyRule::window, E], by average score: see ScoreSums
  std::vector<double> sums;    // [E], of these
};

/// Counts of lookups and loads while the blocks were lent.
struct ServedCount {
  int64_t lookups = 0;
  int64_t hits = 0;
  int64_t loads = 0;  // low ones and fills too
  int64_t bytes = 0;  // of the loads
  int64_t evictions = 0;
  // Prefetches: listed; used when they were there, or on their way; begun and not used; bytes of
  // those that began.
  int64_t listed = 0;
  int64_t arrived = 0;
  int64_t late = 0;
  int64_t wasted = 0;
  int64_t brought_bytes = 0;
  // For the expert-cache rule: slots whose expert was displaced, the mass of these, and by how much
  // the model's own choice had more mass than what was chosen.
  int64_t substituted = 0;
  double mass_substituted = 0;
  double mass_lost = 0;
  // For lower versions: misses that they answered, those of these that were brought for it, slots
  // and mass of these misses.
  int64_t low_answers = 0;
  int64_t low_loads = 0;
  int64_t slots_low = 0;
  double mass_low = 0;
  // Loads behind calls, of experts that are worth them; those of these that a call waited for.
  int64_t fills = 0;
  int64_t late_fills = 0;
  // For a CPU beside the device: misses that it computed, jobs that were taken back from it; what
  // its jobs took, and what the profile says they take.
  int64_t cpu_computed = 0;
  int64_t cpu_taken_back = 0;
  // Among cpu_computed those whose records the device cannot read; the bytes that were read for
  // these from the source; and experts whose rows did not come, though nobody else could compute
  // them.
  int64_t cpu_below = 0;
  int64_t cpu_read_bytes = 0;
  int64_t cpu_lost = 0;
  int64_t cpu_jobs = 0;  // that it answered
  int64_t cpu_took_ns = 0;
  int64_t cpu_modelled_ns = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_STORE_LENT_BLOCKS_H_
