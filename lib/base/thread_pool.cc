#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/mutex.h"
#include "base/spin.h"
#include "base/status_macros.h"
#include "moert/tools/machine.h"

namespace moert {
namespace {

// Jobs [begin, end) that a worker still has to start, in one word so that its owner (from the
// front) and thieves (half, from the back) take from it with one compare-and-swap.
struct alignas(64) JobRange {
  std::atomic<uint64_t> packed{0};
};

constexpr uint64_t Pack(uint32_t begin, uint32_t end) {
  return static_cast<uint64_t>(begin) << 32 | end;
}
constexpr uint32_t Begin(uint64_t packed) { return static_cast<uint32_t>(packed >> 32); }
constexpr uint32_t End(uint64_t packed) { return static_cast<uint32_t>(packed); }

// One Run is one epoch. state_ = epoch << 1 | open. A worker that enters an epoch sets its own
// Presence, and stays only if the epoch is still open then. The caller closes the epoch when no job
// is left and waits for the workers that stayed. Either the worker sees the epoch closed or the
// caller sees the worker, because both write, then read, in one total order. So a worker that wakes
// late costs nothing and can never touch the jobs of another epoch, and no cache line is written by
// all threads.
constexpr uint64_t kOpen = 1;
constexpr uint64_t Epoch(uint64_t state) { return state >> 1; }
struct alignas(64) Presence {
  std::atomic<bool> inside{false};
};

class WorkStealingPool final : public ThreadPool {
 public:
  WorkStealingPool(int threads, std::chrono::microseconds spin)
      : num_threads_(threads),
        spin_(spin),
        ranges_(static_cast<size_t>(threads)),
        present_(static_cast<size_t>(threads)) {}

  ~WorkStealingPool() override {
    {
      const MutexLock lock(&sleep_mutex_);
      stop_.store(true, std::memory_order_release);
    }
    wake_.NotifyAll();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status Start(const std::vector<int>& cpus) {
    threads_.reserve(static_cast<size_t>(num_threads_) - 1);
    for (int worker = 1; worker < num_threads_; ++worker) {
      try {
        threads_.emplace_back([this, worker] { WorkerLoop(worker); });
      } catch (const std::system_error& error) {
        return ResourceExhausted("cannot start thread {} of {}: {}", worker, num_threads_,
                                 error.what());
      }
      if (cpus.empty()) continue;
      const int cpu = cpus[static_cast<size_t>(worker) % cpus.size()];
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(static_cast<size_t>(cpu), &set);
      if (pthread_setaffinity_np(threads_.back().native_handle(), sizeof(set), &set) != 0) {
        return InvalidArgument("cannot pin a thread to CPU {}: not usable by this process", cpu);
      }
    }
    return absl::OkStatus();
  }

  int num_threads() const override { return num_threads_; }

  void Run(int64_t num_jobs, Job job) override {
    if (num_jobs <= 0) return;
    TakeTurn();
    const MutexLock one_at_a_time(&run_mutex_, std::adopt_lock);
    if (num_threads_ == 1 || num_jobs == 1) {
      for (int64_t i = 0; i < num_jobs; ++i) job(i, 0);
      return;
    }
    // Indexes are 32 bits inside an epoch.
    constexpr int64_t kMostJobs = int64_t{1} << 30;
    for (int64_t first = 0; first < num_jobs; first += kMostJobs) {
      RunEpoch(first, std::min(kMostJobs, num_jobs - first), job);
    }
  }

 private:
  /// Spins before it blocks: callers that alternate all the time, as ranks do, need not be woken
  /// for each turn.
  void TakeTurn() ABSL_EXCLUSIVE_LOCK_FUNCTION(run_mutex_) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (!SpinFor(spin_, [this] { return run_mutex_.TryLock(); })) run_mutex_.Lock();
  }
  void RunEpoch(int64_t first, int64_t num_jobs, Job job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(run_mutex_) {
    for (int w = 0; w < num_threads_; ++w) {
      const auto begin = static_cast<uint32_t>(num_jobs * w / num_threads_);
      const auto end = static_cast<uint32_t>(num_jobs * (w + 1) / num_threads_);
      range(w).store(Pack(begin, end), std::memory_order_relaxed);
    }
    first_job_ = first;
    job_ = &job;
    const uint64_t epoch = Epoch(state_.load(std::memory_order_relaxed)) + 1;
    // Sequentially consistent, like the sleeper's own sequence of "count me, look once more":
    // either it sees the new epoch or we see it asleep.
    state_.store(epoch << 1 | kOpen);
    if (sleepers_.load() > 0) {
      { const MutexLock lock(&sleep_mutex_); }
      wake_.NotifyAll();
    }
    WorkOn(0);
    // All jobs have been started; the workers inside are finishing their last one.
    state_.store(epoch << 1);
    int spins = 0;
    for (int worker = 1; worker < num_threads_; ++worker) {
      for (; present_[worker].inside.load(); ++spins) {
        if (spins < 2000) {
          Pause();
        } else {
          // Threads outnumber CPUs, or a worker was descheduled: gives it this thread's CPU.
          std::this_thread::yield();
        }
      }
    }
    job_ = nullptr;
    if (failed_.exchange(false)) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  void WorkerLoop(int worker) {
    std::atomic<bool>& inside = present_[worker].inside;
    uint64_t seen = 0;
    while (WaitForEpoch(&seen)) {
      inside.store(true);
      if (state_.load() == (seen << 1 | kOpen)) WorkOn(worker);
      inside.store(false, std::memory_order_release);
    }
  }

  // Returns false when the pool stops, else true with *seen the newest epoch, not seen before.
  bool WaitForEpoch(uint64_t* seen) {
    const auto fresh = [this, seen] {
      const uint64_t epoch = Epoch(state_.load());
      if (epoch == *seen) return false;
      *seen = epoch;
      return true;
    };
    bool found = false;
    const auto done = [&] { return (found = fresh()) || stop_.load(std::memory_order_acquire); };
    if (SpinFor(spin_, done)) return found;
    const MutexLock lock(&sleep_mutex_);
    sleepers_.fetch_add(1);
    while (!done()) wake_.Wait(&sleep_mutex_);
    sleepers_.fetch_sub(1);
    return found;
  }

  void WorkOn(int worker) {
    const Job& job = *job_;
    for (;;) {
      uint64_t own = range(worker).load(std::memory_order_acquire);
      while (Begin(own) < End(own)) {
        if (range(worker).compare_exchange_weak(own, Pack(Begin(own) + 1, End(own)),
                                                std::memory_order_acq_rel)) {
          Call(job, first_job_ + Begin(own), worker);
          own = range(worker).load(std::memory_order_acquire);
        }
      }
      if (!Steal(worker)) return;
    }
  }

  // The first exception is kept for the caller; the other jobs still run.
  void Call(const Job& job, int64_t index, int worker) {
    try {
      job(index, worker);
    } catch (...) {
      if (!failed_.exchange(true)) failure_ = std::current_exception();
    }
  }

  // Moves the later half of another worker's jobs to this worker's (empty) range, so that owners
  // keep going forward through memory. Jobs that another thief is moving at this moment are run by
  // it.
  bool Steal(int worker) {
    for (int i = 1; i < num_threads_; ++i) {
      std::atomic<uint64_t>& victim = range((worker + i) % num_threads_);
      uint64_t theirs = victim.load(std::memory_order_acquire);
      while (Begin(theirs) < End(theirs)) {
        const uint32_t middle = Begin(theirs) + (End(theirs) - Begin(theirs)) / 2;
        if (victim.compare_exchange_weak(theirs, Pack(Begin(theirs), middle),
                                         std::memory_order_acq_rel)) {
          range(worker).store(Pack(middle, End(theirs)), std::memory_order_release);
          return true;
        }
      }
    }
    return false;
  }

  std::atomic<uint64_t>& range(int worker) { return ranges_[worker].packed; }

  const int num_threads_;
  const std::chrono::microseconds spin_;
  std::vector<JobRange> ranges_;
  std::vector<Presence> present_;
  std::vector<std::thread> threads_;
  Mutex run_mutex_;  // held by Run: callers take turns

  // Written by the caller while no worker is inside an epoch, read by workers that are.
  const Job* job_ = nullptr;
  int64_t first_job_ = 0;
  // Set by jobs that threw; read by the caller when no worker is inside.
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;

  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  Mutex sleep_mutex_;  // guards no field: orders notifications behind a sleeper's last look
  CondVar wake_;
};

}  // namespace

int UsableCpus() { return ReadCpuLimits().usable(); }

absl::StatusOr<std::unique_ptr<ThreadPool>> CreateThreadPool(const ThreadPoolOptions& options) try {
  constexpr int kMostThreads = 4096;
  if (options.threads < 0 || options.threads > kMostThreads) {
    return InvalidArgument("{} threads: legal are 0 (one per CPU) to {}", options.threads,
                           kMostThreads);
  }
  if (options.spin_microseconds < 0) {
    return InvalidArgument("spin_microseconds is {}, must not be negative",
                           options.spin_microseconds);
  }
  for (const int cpu : options.cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) {
      return InvalidArgument("CPU {} to pin to: legal are 0 to {}", cpu, CPU_SETSIZE - 1);
    }
  }
  const int usable = UsableCpus();
  const int threads = options.threads == 0 ? usable : options.threads;
  const int spin = threads <= usable ? options.spin_microseconds : 0;
  auto pool = std::make_unique<WorkStealingPool>(threads, std::chrono::microseconds(spin));
  MOERT_RETURN_IF_ERROR(pool->Start(options.cpus));
  return std::unique_ptr<ThreadPool>(std::move(pool));
} catch (...) {
  return ExceptionStatus("creating a thread pool");
}

}  // namespace moert
