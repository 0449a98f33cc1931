// Replay on several GPUs: one simulated engine per rank, each with its shard of the experts on a
// virtual clock of its own. A layer ends when the slowest rank and the exchange are done. For
// machines that are not at hand.
#ifndef MOERT_PARALLEL_PARALLEL_REPLAY_H_
#define MOERT_PARALLEL_PARALLEL_REPLAY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/options.h"
#include "moert/parallel/placement.h"
#include "moert/source/expert_source.h"
#include "moert/tools/replay.h"
#include "moert/tools/trace.h"

namespace moert {

/// The time of an exchange: a latency per collective, then bytes at a rate, sent and received by
/// each GPU at the same time. The defaults describe no particular machine.
struct PeerLinks {
  double peer_bytes_per_s = 200e9;  // of one GPU, to others of its node
  int64_t peer_latency_ns = 10'000;
  double node_bytes_per_s = 40e9;  // of one GPU, to other nodes
  int64_t node_latency_ns = 20'000;
};
/// Reads the fields of these names from a profile's file (profile.h); "reference" and missing
/// fields give the defaults. Errors name the file, field and range.
absl::StatusOr<PeerLinks> LoadPeerLinks(const std::string& path);

struct ParallelReplayOptions {
  ReplayOptions replay = {};  // recorded_times is not supported
  int gpus = 1;               // of a node
  int nodes = 1;
  PeerLinks links = {};
  /// Experts of each rank (PlaceExperts), whole experts only; empty: ReplayShard.
  std::vector<Shard> shards = {};
  /// Replaces `shards` if it has owners. An expert may have several (PlaceReplicas), which take
  /// turns by token. Each rank owns at least one expert of every layer, and holds only experts that
  /// it owns.
  ExpertPlacement placement = {};
  /// Calls of up to this many tokens replicate them on every rank and end with an all-reduce. In
  /// longer calls each rank has its share of the tokens, sends rows to the ranks that own their
  /// experts, and gets them back.
  int64_t all_reduce_tokens = 64;
  int64_t element_bytes = 2;  // of what is exchanged
};

struct ParallelReplayResult {
  ReplayResult whole = {};              // times of the group; stats of rank 0
  std::vector<EngineStats> ranks = {};  // of the counted steps
  double exchange_ms = 0;               // of the counted steps
  double compute_ms = 0;  // of the slowest rank of each layer, waiting for loads included
  /// Time of the slowest rank over the mean of all, summed over layers: 1 is balanced.
  double imbalance = 1;
};

/// The shard of rank `rank` of `ranks`: experts rank, rank + ranks, ... of every layer, and rank 0
/// the shared ones.
Shard ReplayShard(const MoeModelSpec& model, int rank, int ranks);

/// The budget in `engine` is that of each GPU: a fraction is of the GPU's own experts. Clock and
/// simulate are set here. The part of a prompt's layer time that grows with its tokens is divided
/// by the number of ranks.
absl::StatusOr<ParallelReplayResult> ReplayParallel(TraceReader* trace,
                                                    std::shared_ptr<const ExpertSource> source,
                                                    EngineOptions engine,
                                                    const ParallelReplayOptions& options);

}  // namespace moert

#endif  // MOERT_PARALLEL_PARALLEL_REPLAY_H_
