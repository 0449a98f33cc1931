// Memory rates, wake-up times, limits.
#include <sys/resource.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "cli/probe/parts.h"
#include "cli/probe/read_bandwidth.h"
#include "moert/thread_pool.h"
#include "util/aligned_buffer.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kBytes = int64_t{256} << 20;

double Nanoseconds(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::nano>(end - begin).count();
}

double CopyRate(ThreadPool* pool, const std::byte* from, std::byte* to, int64_t bytes) {
  constexpr int64_t kJob = int64_t{1} << 20;
  const auto begin = Clock::now();
  pool->Run(bytes / kJob,
            [&](int64_t job, int) { std::memcpy(to + job * kJob, from + job * kJob, kJob); });
  return static_cast<double>(bytes) * 1e9 / Nanoseconds(begin, Clock::now());
}

/// A thread that answers each notification.
class Echo {
 public:
  Echo() : thread_([this] { Serve(); }) {}
  ~Echo() {
    {
      std::lock_guard<std::mutex> lock(mu_);
      stop_ = true;
    }
    asked_.notify_one();
    thread_.join();
  }
  void Ask() {
    std::unique_lock<std::mutex> lock(mu_);
    ++questions_;
    asked_.notify_one();
    answered_.wait(lock, [this] { return answers_ == questions_; });
  }

 private:
  void Serve() {
    std::unique_lock<std::mutex> lock(mu_);
    while (true) {
      asked_.wait(lock, [this] { return stop_ || answers_ < questions_; });
      if (stop_) return;
      answers_ = questions_;
      answered_.notify_one();
    }
  }
  std::mutex mu_;
  std::condition_variable asked_, answered_;
  int64_t questions_ = 0, answers_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<MemoryRates> ProbeMemory(int threads, int readers, int repeats, const Until& until) {
  ThreadPoolOptions all_options, one_options, reader_options;
  all_options.threads = threads;
  one_options.threads = 1;
  reader_options.threads = readers;
  MOERT_ASSIGN_OR_RETURN(const auto all, CreateThreadPool(all_options));
  MOERT_ASSIGN_OR_RETURN(const auto one, CreateThreadPool(one_options));
  MOERT_ASSIGN_OR_RETURN(const auto some, CreateThreadPool(reader_options));
  util::AlignedBuffer from, to;
  MOERT_RETURN_IF_ERROR(from.Reset(kBytes));
  MOERT_RETURN_IF_ERROR(to.Reset(kBytes));
  std::memset(from.data(), 1, kBytes);
  std::memset(to.data(), 2, kBytes);
  std::vector<double> read, read_one, copy, copy_one, copy_some;
  for (int r = 0; r < repeats && (r == 0 || !until.passed()); ++r) {
    read.push_back(ReadBandwidth(all.get(), from.data(), kBytes));
    read_one.push_back(ReadBandwidth(one.get(), from.data(), kBytes));
    copy.push_back(CopyRate(all.get(), from.data(), to.data(), kBytes));
    copy_one.push_back(CopyRate(one.get(), from.data(), to.data(), kBytes));
    copy_some.push_back(CopyRate(some.get(), from.data(), to.data(), kBytes));
  }
  return MemoryRates{SpreadOf(read), SpreadOf(read_one), SpreadOf(copy), SpreadOf(copy_one),
                     SpreadOf(copy_some)};
}

absl::StatusOr<WakeTimes> ProbeWake(ThreadPool* pool, int repeats, const Until& until) {
  std::vector<double> condition, running, slept, sleep;
  Echo echo;
  const int64_t jobs = pool->num_threads();
  // Work enough for all threads, in pieces that those who are awake take from those who are not.
  const int64_t pieces = jobs * 30;
  const auto piece = [](int64_t, int) {
    const auto end = Clock::now() + std::chrono::microseconds(10);
    while (Clock::now() < end) {
    }
  };
  for (int r = 0; r < repeats * 20 && (r < 5 || !until.passed()); ++r) {
    // Long enough for every other thread to be asleep.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    auto begin = Clock::now();
    echo.Ask();
    condition.push_back(Nanoseconds(begin, Clock::now()) / 2);

    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    begin = Clock::now();
    pool->Run(pieces, piece);
    const double late = Nanoseconds(begin, Clock::now());
    begin = Clock::now();
    pool->Run(pieces, piece);
    slept.push_back(std::max(0.0, late - Nanoseconds(begin, Clock::now())));
    begin = Clock::now();
    pool->Run(jobs, [](int64_t, int) {});
    running.push_back(Nanoseconds(begin, Clock::now()));

    begin = Clock::now();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    sleep.push_back(Nanoseconds(begin, Clock::now()) - 100e3);
  }
  return WakeTimes{SpreadOf(condition), SpreadOf(running), SpreadOf(slept), SpreadOf(sleep)};
}

int64_t PinLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<int64_t>(limit.rlim_cur);
}

}  // namespace moert::cli
