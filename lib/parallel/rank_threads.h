// Ranks on the same CPUs: they have as many threads as there are CPUs, not as many each; those of
// one process wait for each other.
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

/// Where a rank runs, as the others see it.
struct RankPlace {
  uint64_t process = 0;
  uint64_t cpus = 0;    // of a host, that its threads may run on
  uint64_t number = 0;  // that no other rank of the process has
  int64_t asks = 0;     // 1: its options do not say who computes
};

/// Threads of the pool of `me` and of those that share it; 0: it is alone, as nobody else runs
/// there. `usable`: CPUs of this process; `io_threads`: of a rank; `beside`: the pool works beside
/// devices, whose ranks and readers need CPUs too.
int ThreadsOf(absl::Span<const RankPlace> ranks, int me, int usable, int io_threads, bool beside);

/// Collective: the places of all ranks, of which `options` are this one's.
absl::StatusOr<std::vector<RankPlace>> GatherPlaces(Collectives* group,
                                                    const EngineOptions& options);

/// Sets options->thread_pool where ranks share a pool, and options->threads where processes share
/// CPUs.
absl::Status ShareCpus(absl::Span<const RankPlace> ranks, int me, EngineOptions* options);

/// Where the ranks of a process wait for each other on the host. A rank that waits in a collective
/// occupies its device; another one that allocates or frees memory there, for peer copies or in
/// pinned memory, would wait for it in turn.
class RankMeeting {
 public:
  /// The ranks that share a process with `me` meet. Each of them comes once.
  RankMeeting(absl::Span<const RankPlace> ranks, int me);

  /// Comes, and waits until all have come, or so long. Allocates nothing: a rank that lacks memory
  /// comes, too.
  void Meet(std::chrono::nanoseconds most) const;

 private:
  uint64_t number_ = 0;  // of its first rank
  int ranks_ = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_PARALLEL_RANK_THREADS_H_
