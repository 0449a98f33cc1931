#include "parallel/rank_threads.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <set>

#include "base/hash64.h"
#include "base/mutex.h"
#include "base/spin.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"

namespace moert {
namespace {

template <typename T>
void Add(const T& value, Hasher64* hash) {
  hash->Add({reinterpret_cast<const std::byte*>(&value), sizeof(value)});
}

uint64_t HostCpus() {
  Hasher64 hash;
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  Add(host, &hash);
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  sched_getaffinity(0, sizeof(cpus), &cpus);
  Add(cpus, &hash);
  return hash.Finish();
}

/// Identifies this process. The process id alone is not unique across containers.
uint64_t ThisProcess() {
  static const uint64_t number = [] {
    Hasher64 hash;
    Add(HostCpus(), &hash);
    Add(getpid(), &hash);
    Add(&number, &hash);
    Add(std::chrono::steady_clock::now(), &hash);
    return hash.Finish();
  }();
  return number;
}

/// The T that ranks of the process share under this number; the first caller makes it. make()
/// returns a StatusOr<std::shared_ptr<T>>.
template <typename T, typename Make>
absl::StatusOr<std::shared_ptr<T>> SharedBy(uint64_t number, const Make& make) {
  static Mutex mu;
  static std::map<uint64_t, std::weak_ptr<T>> all;
  const MutexLock lock(&mu);
  std::erase_if(all, [](const auto& one) { return one.second.expired(); });
  if (std::shared_ptr<T> one = all[number].lock()) return one;
  MOERT_ASSIGN_OR_RETURN(std::shared_ptr<T> one, make());
  all[number] = one;
  return one;
}

/// A group of ranks that wait for each other.
struct Table {
  uint64_t number = 0;
  int here = 0;
  int missing = 0;
};

/// The tables of a process. If there are more groups than tables, the others do not wait.
struct Hall {
  Table* Find(uint64_t number, int ranks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Table* free = nullptr;
    for (Table& table : tables) {
      if (table.here == 0) free = &table;
      if (table.here > 0 && table.number == number) return &table;
    }
    if (free != nullptr) *free = {number, 0, ranks};
    return free;
  }

  Mutex mu;
  CondVar came;
  std::array<Table, 64> tables ABSL_GUARDED_BY(mu);
};

bool Shares(const RankPlace& a, const RankPlace& b) {
  return a.asks != 0 && b.asks != 0 && a.process == b.process;
}

}  // namespace

int ThreadsOf(absl::Span<const RankPlace> ranks, int me, int usable, int io_threads, bool beside) {
  const RankPlace& mine = ranks[static_cast<size_t>(me)];
  int here = 0;
  std::set<uint64_t> processes;
  for (const RankPlace& rank : ranks) {
    if (Shares(rank, mine)) ++here;
    if (rank.cpus == mine.cpus) processes.insert(rank.process);
  }
  if (here == 0 || (here == 1 && processes.size() == 1)) return 0;
  const int cpus = std::max(1, usable / static_cast<int>(processes.size()));
  return beside ? std::max({1, cpus / 2, cpus - here * (1 + io_threads)}) : cpus;
}

absl::StatusOr<std::vector<RankPlace>> GatherPlaces(Collectives* group,
                                                    const EngineOptions& options) {
  static std::atomic<uint64_t> calls{0};
  const bool asks = options.threads == 0 && options.cpus.empty() && options.numa_node < 0 &&
                    options.thread_pool == nullptr;
  const RankPlace mine = {ThisProcess(), HostCpus(), calls.fetch_add(1), asks ? 1 : 0};
  std::vector<RankPlace> ranks(static_cast<size_t>(group->size()));
  MOERT_RETURN_IF_ERROR(group->AllGather(&mine, sizeof(mine), ranks.data(), nullptr));
  return ranks;
}

absl::Status ShareCpus(absl::Span<const RankPlace> ranks, int me, EngineOptions* options) {
  const bool beside = options->backend != BackendKind::kCpu;
  const int threads = ThreadsOf(ranks, me, UsableCpus(), options->io_threads, beside);
  if (threads == 0) return absl::OkStatus();
  const auto shares = [&mine = ranks[static_cast<size_t>(me)]](const RankPlace& rank) {
    return Shares(rank, mine);
  };
  if (std::count_if(ranks.begin(), ranks.end(), shares) == 1) {
    options->threads = threads;
    return absl::OkStatus();
  }
  ThreadPoolOptions pool;
  pool.threads = threads;
  if (beside) pool.spin_microseconds = static_cast<int>(kSpinWithDevice.count());
  const uint64_t number = std::find_if(ranks.begin(), ranks.end(), shares)->number;
  MOERT_ASSIGN_OR_RETURN(options->thread_pool,
                         SharedBy<ThreadPool>(number, [&] { return CreateThreadPool(pool); }));
  return absl::OkStatus();
}

RankMeeting::RankMeeting(absl::Span<const RankPlace> ranks, int me) {
  for (const RankPlace& rank : ranks) {
    if (rank.process != ranks[static_cast<size_t>(me)].process) continue;
    if (ranks_++ == 0) number_ = rank.number;
  }
}

void RankMeeting::Meet(std::chrono::nanoseconds most) const {
  static Hall hall;
  const auto end = std::chrono::steady_clock::now() + most;
  const MutexLock lock(&hall.mu);
  Table* const table = hall.Find(number_, ranks_);
  if (table == nullptr) return;
  ++table->here;
  if (--table->missing == 0) hall.came.NotifyAll();
  for (auto now = end - most; table->missing > 0 && now < end;
       now = std::chrono::steady_clock::now()) {
    hall.came.WaitFor(&hall.mu, end - now);
  }
  --table->here;  // at 0 the table is free
}

}  // namespace moert
