#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

namespace moert {
namespace {

std::unique_ptr<ThreadPool> MakePool(int threads, int spin = 50) {
  ThreadPoolOptions options;
  options.threads = threads;
  options.spin_microseconds = spin;
  auto pool = CreateThreadPool(options);
  REQUIRE_OK(pool.status());
  return *std::move(pool);
}

TEST_CASE("every job runs exactly once and its writes are visible") {
  const int threads = GENERATE(1, 2, 3, 8);
  const int spin = GENERATE(0, 50);
  const auto pool = MakePool(threads, spin);
  CHECK(pool->num_threads() == threads);
  for (const int64_t jobs : {0, 1, 2, 3, 7, 64, 1000, 4097}) {
    std::vector<int> runs(static_cast<size_t>(jobs), 0);  // not atomic: TSan checks the hand-over
    pool->Run(jobs, [&](int64_t job, int) { ++runs[static_cast<size_t>(job)]; });
    CHECK(std::count(runs.begin(), runs.end(), 1) == jobs);
  }
}

TEST_CASE("worker numbers are exclusive") {
  const auto pool = MakePool(4);
  std::vector<std::atomic<int>> busy(4);
  std::atomic<bool> clash{false};
  for (int round = 0; round < 200; ++round) {
    pool->Run(64, [&](int64_t, int worker) {
      if (busy.at(static_cast<size_t>(worker)).fetch_add(1) != 0) clash = true;
      busy[static_cast<size_t>(worker)].fetch_sub(1);
    });
  }
  CHECK_FALSE(clash);
}

TEST_CASE("idle threads take over a slow thread's jobs") {
  const auto pool = MakePool(2);
  // All of thread 0's first jobs are behind job 0; job 0 returns only when the last one ran.
  std::atomic<int> done{0};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  bool timed_out = false;
  pool->Run(32, [&](int64_t job, int) {
    if (job == 0) {
      while (done.load() < 31 && !timed_out) {
        timed_out = std::chrono::steady_clock::now() > deadline;
        std::this_thread::yield();
      }
    } else {
      done.fetch_add(1);
    }
  });
  CHECK_FALSE(timed_out);
  CHECK(done == 31);
}

TEST_CASE("back to back, after sleeping, and with more threads than jobs") {
  const auto pool = MakePool(4, 10);
  std::atomic<int64_t> sum{0};
  int64_t expected = 0;
  for (int round = 0; round < 2000; ++round) {
    const int64_t jobs = round % 7;
    pool->Run(jobs, [&](int64_t job, int) { sum.fetch_add(job + 1); });
    expected += jobs * (jobs + 1) / 2;
    if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(sum == expected);
}

TEST_CASE("concurrent callers take turns") {
  const auto pool = MakePool(3);
  std::atomic<int64_t> inside{0};
  std::atomic<int64_t> total{0};
  std::vector<std::thread> callers;
  std::atomic<bool> mixed{false};
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        pool->Run(16, [&](int64_t, int) {
          inside.fetch_add(1);
          if (inside.load() > 3) mixed = true;
          total.fetch_add(1);
          inside.fetch_sub(1);
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(total == 4 * 100 * 16);
  CHECK_FALSE(mixed);
}

TEST_CASE("one thread means the caller's") {
  const auto pool = MakePool(1);
  const auto self = std::this_thread::get_id();
  bool all_here = true;
  pool->Run(10, [&](int64_t, int worker) {
    all_here = all_here && worker == 0 && std::this_thread::get_id() == self;
  });
  CHECK(all_here);
}

TEST_CASE("pinning binds the started threads only") {
  cpu_set_t mine;
  REQUIRE(sched_getaffinity(0, sizeof(mine), &mine) == 0);
  int cpu = 0;
  while (!CPU_ISSET(static_cast<size_t>(cpu), &mine)) ++cpu;
  ThreadPoolOptions options;
  options.threads = 2;
  options.cpus = {cpu};
  auto pool = CreateThreadPool(options);
  REQUIRE_OK(pool.status());
  std::atomic<int> helper_cpus{-1};
  std::atomic<bool> helper_ran{false};
  (*pool)->Run(2, [&](int64_t, int worker) {
    if (worker == 1) {
      cpu_set_t set;
      sched_getaffinity(0, sizeof(set), &set);
      helper_cpus = CPU_COUNT(&set);
      helper_ran = true;
    } else {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!helper_ran && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    }
  });
  CHECK(helper_cpus == 1);
  cpu_set_t after;
  REQUIRE(sched_getaffinity(0, sizeof(after), &after) == 0);
  CHECK(CPU_EQUAL(&mine, &after));
}

TEST_CASE("illegal options are refused") {
  for (const int threads : {-1, 1 << 20}) {
    ThreadPoolOptions options;
    options.threads = threads;
    CHECK(CreateThreadPool(options).status().code() == absl::StatusCode::kInvalidArgument);
  }
  ThreadPoolOptions pinned;
  pinned.threads = 2;
  pinned.cpus = {CPU_SETSIZE};
  CHECK(CreateThreadPool(pinned).status().code() == absl::StatusCode::kInvalidArgument);
  ThreadPoolOptions spin;
  spin.spin_microseconds = -1;
  CHECK(CreateThreadPool(spin).status().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace moert
