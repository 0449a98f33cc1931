// PeerTier: engines of one process on several GPUs, each over the whole model, act as one cache. If
// another engine holds an expert that one misses, it is copied from there (over NVLink if present)
// instead of from host memory: several times as fast. The tier times such copies when an engine
// joins on a device that is new to it. Two devices that cannot reach each other, or whose copies
// are slower than the host's, do without; NCCL_P2P_DISABLE=1 in the environment turns them off.
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
