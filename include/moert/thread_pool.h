// The threads that execute the CPU kernels. A host with a pool of its own puts it behind this.
#ifndef MOERT_THREAD_POOL_H_
#define MOERT_THREAD_POOL_H_

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace moert {

/// Runs independent jobs on num_threads() threads, the caller among them. The interface is small
/// enough for a host to put its own pool behind it.
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

}  // namespace moert

#endif  // MOERT_THREAD_POOL_H_
