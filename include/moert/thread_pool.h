// The threads that execute the CPU kernels: a host's pool, or the library's own.
#ifndef MOERT_THREAD_POOL_H_
#define MOERT_THREAD_POOL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace moert {

/// Runs independent jobs on num_threads() threads, the caller among them. A host may implement it.
class ThreadPool {
 public:
  /// Called as job(index, worker), worker in [0, num_threads()): no two jobs that run at the same
  /// time see the same worker. Must not throw and must not call Run of the same pool.
  using Job = absl::FunctionRef<void(int64_t index, int worker)>;

  virtual ~ThreadPool() = default;
  virtual int num_threads() const = 0;
  /// Runs jobs 0..num_jobs-1, each exactly once, in no promised order, and returns when all are
  /// done; what they wrote is then visible to the caller. Calls from several threads take turns.
  virtual void Run(int64_t num_jobs, Job job) = 0;
};

struct ThreadPoolOptions {
  /// Threads that work, the caller of Run included; 0: one per usable CPU. 1 starts none.
  int threads = 0;
  /// How long an idle thread spins before it sleeps: longer wakes faster between the layers of a
  /// decode step and burns more CPU. Not used with more threads than CPUs.
  int spin_microseconds = 50;
  /// Thread i (1..threads-1, never the caller) is pinned to cpus[i % size]; empty: not pinned.
  std::vector<int> cpus = {};
};

/// The library's own pool: fixed threads with work stealing. Run does not allocate. Destroy it from
/// a thread that is not its own, without a Run under way. Fails if a thread does not start or pin.
absl::StatusOr<std::unique_ptr<ThreadPool>> CreateThreadPool(const ThreadPoolOptions& options);

}  // namespace moert

#endif  // MOERT_THREAD_POOL_H_
