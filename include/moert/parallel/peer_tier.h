// PeerTier: engines of one process on several GPUs, each over the whole model, as one cache. A miss
// of one engine that another holds is copied from there, over NVLink where there is one, in place
// of host memory: several times as fast. Such copies are timed when an engine comes whose device
// the tier has not had yet. Two devices whose copies are slower than the host's, or that cannot
// reach each other, do without; NCCL_P2P_DISABLE=1 in the environment forbids them to.
#ifndef MOERT_PARALLEL_PEER_TIER_H_
#define MOERT_PARALLEL_PEER_TIER_H_

#include <cstdint>
#include <memory>

namespace moert {

class PeerTier;

/// For EngineOptions::peers of engines over one source.
std::shared_ptr<PeerTier> MakePeerTier();

struct PeerTierStats {
  int64_t copies = 0;  // between engines, since it was made
  int64_t bytes = 0;
};
PeerTierStats StatsOf(const PeerTier& tier);

}  // namespace moert

#endif  // MOERT_PARALLEL_PEER_TIER_H_
