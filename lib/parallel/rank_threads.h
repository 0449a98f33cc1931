// Threads of ranks that run on the same CPUs: as many as there are CPUs, not as many for each.
#ifndef MOERT_LIB_PARALLEL_RANK_THREADS_H_
#define MOERT_LIB_PARALLEL_RANK_THREADS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "moert/options.h"
#include "moert/parallel/collectives.h"

namespace moert {

/// Where a rank runs, as the others see it.
struct RankPlace {
  uint64_t process = 0;
  uint64_t cpus = 0;  // of a host, that its threads may run on
  uint64_t pool = 0;  // a number that no other rank of the process has
  int64_t asks = 0;   // 1: its options do not say who computes
};

/// Threads of the pool of `me` and of those that share it; 0: it is alone, as nobody else runs
/// there. `usable`: CPUs of this process; `io_threads`: of a rank; `beside`: the pool works beside
/// devices, whose ranks and readers need CPUs too.
int ThreadsOf(absl::Span<const RankPlace> ranks, int me, int usable, int io_threads, bool beside);

/// Collective: sets options->thread_pool where ranks share a pool, and options->threads where
/// processes share CPUs.
absl::Status ShareCpus(Collectives* group, EngineOptions* options);

}  // namespace moert

#endif  // MOERT_LIB_PARALLEL_RANK_THREADS_H_
