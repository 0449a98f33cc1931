// The library's own thread pool, for hosts that have none: fixed threads with work stealing.
#ifndef MOERT_DEFAULT_THREAD_POOL_H_
#define MOERT_DEFAULT_THREAD_POOL_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/thread_pool.h"

namespace moert {

struct ThreadPoolOptions {
  /// Threads that work, the caller of Run included; 0: one per usable CPU. 1 starts none.
  int threads = 0;
  /// How long an idle thread spins before it sleeps. Longer wakes faster between the layers of a
  /// decode step and burns more CPU when idle. Not used when there are more threads than CPUs.
  int spin_microseconds = 50;
  /// Started thread i (1..threads-1) is pinned to cpus[i % size]; empty: not pinned. The caller's
  /// own thread is never touched.
  std::vector<int> cpus = {};
};

/// A pool of our own threads. Run does not allocate. Destroy it from a thread that is not its own
/// and when no Run is under way. Fails if a thread cannot be started or pinned.
absl::StatusOr<std::unique_ptr<ThreadPool>> CreateThreadPool(const ThreadPoolOptions& options);

}  // namespace moert

#endif  // MOERT_DEFAULT_THREAD_POOL_H_
