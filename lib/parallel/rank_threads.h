// Ranks on the same CPUs: together they have as many threads as there are CPUs, and ranks of one
// process can wait for each other.
#ifndef MOERT_LIB_PARALLEL_RANK_THREADS_H_
#define MOERT_LIB_PARALLEL_RANK_THREADS_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/options.h"
#include "moert/parallel/collectives.h"

namespace moert {

/// Where a rank runs, as the other ranks see it.
struct RankPlace {
  uint64_t process = 0;
  uint64_t cpus = 0;    // hash of the host and of the CPUs that its threads may run on
  uint64_t number = 0;  // unique among the ranks of a process
  int64_t asks = 0;     // 1: its options choose no pool, threads or CPUs
};

/// Threads of the pool that `me` shares with other ranks; 0: no other rank runs on its CPUs.
/// `usable`: CPUs of this process; `io_threads`: readers of a rank; `beside`: the pool works beside
/// devices, whose ranks and readers need CPUs too.
int ThreadsOf(absl::Span<const RankPlace> ranks, int me, int usable, int io_threads, bool beside);

/// Collective: the places of all ranks. `options`: this rank's.
absl::StatusOr<std::vector<RankPlace>> GatherPlaces(Collectives* group,
                                                    const EngineOptions& options);

/// Sets options->thread_pool if ranks share a pool, and options->threads if processes share CPUs.
absl::Status ShareCpus(absl::Span<const RankPlace> ranks, int me, EngineOptions* options);

/// Lets the ranks of a process wait for each other on the host. Waiting in a collective instead
/// would occupy the rank's device, and another rank that allocates or frees memory there, for peer
/// copies or in pinned memory, would wait for it in turn.
class RankMeeting {
 public:
  /// For the ranks that share a process with `me`. Each of them calls Meet once.
  RankMeeting(absl::Span<const RankPlace> ranks, int me);

  /// Waits until all ranks have called this, at most for `most`. Allocates nothing, so that a rank
  /// without memory can call it too.
  void Meet(std::chrono::nanoseconds most) const;

 private:
  uint64_t number_ = 0;  // RankPlace::number of the first of these ranks
  int ranks_ = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_PARALLEL_RANK_THREADS_H_
