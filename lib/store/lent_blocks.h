// The blocks of a store while they are lent to a device, which decides which experts are in them.
#ifndef MOERT_LIB_STORE_LENT_BLOCKS_H_
#define MOERT_LIB_STORE_LENT_BLOCKS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "moert/model.h"
#include "rules/expert_use.h"

namespace moert {

/// The most distinct experts that a token chooses in a layer.
inline int ExpertsOfAToken(const MoeLayerSpec& layer) {
  return std::min(layer.routing.top_k, layer.num_experts);
}

/// Whether the device serves a fetch of `ids` experts of a layer: each needs a slot. `lent`: the
/// slots that the layer has been lent; negative: nothing is lent yet, and the layer can expect the
/// larger of its capacity and `least` (VersionedStore::LeastLent).
inline bool ServesFetch(int64_t ids, int64_t lent, int capacity, int least) {
  return ids <= (lent >= 0 ? lent : std::max(capacity, least));
}

/// A lent block of a layer, and the expert in it.
struct LentSlot {
  int32_t block = -1;
  int32_t expert = -1;    // -1: the slot is empty
  int64_t last_used = 0;  // of the expert, as in VictimCandidate
  int32_t tokens = 0;     // likewise
};
struct LentLayer {
  int64_t tick = 0;  // of the last layer call
  std::vector<LentSlot> slots;
  // The state of the residency policy, by which the device evicts (CachePolicy::LendUse): the
  // number of calls that it has seen, the mean number of experts that a call brings, and one of the
  // arrays.
  int64_t calls = 0;
  double inserted = 1;
  std::vector<ExpertUse> use;  // [E], for eviction by worth
  std::vector<float> scores;   // [ResidencyRule::window, E], by average score (ScoreSums)
  std::vector<double> sums;    // [E], sums of scores
};

/// Counts of lookups and loads while the blocks were lent.
struct ServedCount {
  int64_t lookups = 0;
  int64_t hits = 0;
  int64_t loads = 0;  // including low versions and fills
  int64_t bytes = 0;  // of the loads
  int64_t evictions = 0;
  // Prefetches.
  int64_t listed = 0;
  int64_t arrived = 0;        // used, and complete by then
  int64_t late = 0;           // used, and still on their way
  int64_t wasted = 0;         // begun and not used
  int64_t brought_bytes = 0;  // of those that began
  // For the expert-cache rule: slots whose expert was displaced, their routing mass, and by how
  // much the mass of the model's own choice exceeds that of the rule's choice.
  int64_t substituted = 0;
  double mass_substituted = 0;
  double mass_lost = 0;
  // For low versions: misses that they answered, those whose low record had to be brought, and the
  // slots and mass of these misses.
  int64_t low_answers = 0;
  int64_t low_loads = 0;
  int64_t slots_low = 0;
  double mass_low = 0;
  // Loads behind calls of experts that the call did without, and those that a later call waited
  // for.
  int64_t fills = 0;
  int64_t late_fills = 0;
  // For a CPU beside the device: misses that it computed, and jobs that were taken back from it.
  int64_t cpu_computed = 0;
  int64_t cpu_taken_back = 0;
  // Those of cpu_computed whose records the device cannot read; the bytes read from the source for
  // them; and experts that only the CPU could compute and whose rows did not come.
  int64_t cpu_below = 0;
  int64_t cpu_read_bytes = 0;
  int64_t cpu_lost = 0;
  int64_t cpu_jobs = 0;         // jobs that it answered
  int64_t cpu_took_ns = 0;      // their measured time
  int64_t cpu_modelled_ns = 0;  // their time by the profile
};

}  // namespace moert

#endif  // MOERT_LIB_STORE_LENT_BLOCKS_H_
