// Mixed load on a device for a while: eager steps, recorded steps, fetches, leases, budgets,
// cancellations, failing reads and engines that come and go, from threads of their own. In rounds;
// after each everything is given back.
//
//   gpu.soak [--shared] SECONDS [ROUND_SECONDS]
//
// Asserted: outputs that are OK have the bits of a fully resident engine, or are as near as the CPU
// comes where it computes experts; every failure has a code that the load explains; after the first
// rounds device memory, heap, resident memory, descriptors and threads stay where they are. The
// heap is that of the program's own `new`, and what is allocated otherwise, by the driver above
// all, which takes 256 KiB at once now and then. Device memory is that of the whole device: with
// --shared, where others use it too, it is printed and not asserted. SIGTERM ends it after the
// round. Exit status 1: something did not hold.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "moert/backend.h"
#include "soak.h"
#include "tests/support/heap_peak.h"
#include "tests/support/thread_caches.h"

namespace moert::soak {
namespace {

constexpr int kWarmRounds = 4;
constexpr int64_t kKiB = 1024, kMiB = kKiB * kKiB;
volatile std::sig_atomic_t ended = 0;

using Clock = std::chrono::steady_clock;

void Pause(double seconds) {
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  while (ended == 0 && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

template <typename T>
T OrExit(absl::StatusOr<T> made) {
  if (made.ok()) return *std::move(made);
  std::fprintf(stderr, "%s\n", made.status().ToString().c_str());
  std::_Exit(3);
}

struct Inputs {
  Expected expected = ExpectedOutputs();
  test::OpaqueModel model;
  std::vector<std::vector<double>> products = ExpectedProducts(model);
};

void Round(const Inputs& in, int n, double seconds) {
  constexpr const char* kStrategies[] = {"on-demand", "fate", "on-demand+fate.prefetch",
                                         "resident"};
  constexpr const char* kServed[] = {"on-demand", "fate", "on-demand+importance.residency",
                                     kWithCpu};
  constexpr const char* kFetched[] = {"on-demand", "fate"};
  const bool whole = n % 4 == 3;
  const auto flaky = std::make_shared<FlakySource>();
  const auto steps = OrExit(Open(flaky, kStrategies[n % 4], whole ? 1 : 0.5, kSomeRecords));
  const auto served = OrExit(
      Open(std::make_shared<test::SyntheticSource>(Shape()), kServed[n % 4], 0.4, kAllRecords));
  const std::shared_ptr<const ExpertSource> opaque =
      OrExit(MakeOpaqueSource("toy", in.model.spec, in.model.InMemory()));
  const auto fetches = OrExit(Open(opaque, kFetched[n % 2], 0.5, kAllRecords));
  flaky->failing = true;
  stop = false;
  const auto seed = static_cast<unsigned>(n) * 16;
  std::thread threads[] = {
      std::thread([&] { RunSteps(steps.get(), *flaky, in.expected, seed + 1, !whole); }),
      std::thread([&] { RunSteps(steps.get(), *flaky, in.expected, seed + 2, !whole); }),
      std::thread([&] { RunReplays(served.get(), in.expected, seed + 3); }),
      std::thread([&] { RunFetches(fetches.get(), in.products, seed + 4); }),
      std::thread([&] { RunEngines(in.expected, seed); })};
  Pause(seconds);
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

int64_t Entries(const char* folder) {
  int64_t entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    entries += entry.exists() ? 1 : 0;
  }
  return entries;
}

int64_t ResidentBytes() {
  int64_t size = 0, pages = 0;
  std::ifstream("/proc/self/statm") >> size >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

/// The process's memory, and by how much more it may have.
struct Held {
  int64_t device, own, others, resident, descriptors, threads;

  static Held Now() {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // joined threads leave /proc late
    size_t free = 0, total = 0;
    Own(cudaDeviceSynchronize());
    Own(cudaMemGetInfo(&free, &total));
    malloc_trim(0);
    const struct mallinfo2 heap = mallinfo2();
    const int64_t own = test::heap::held;
    return {static_cast<int64_t>(total - free),
            own,
            static_cast<int64_t>(heap.uordblks + heap.hblkhd) - own,
            ResidentBytes(),
            Entries("/proc/self/fd"),
            Entries("/proc/self/task")};
  }
  void Widen(const Held& other) {
    device = std::max(device, other.device);
    own = std::max(own, other.own);
    others = std::max(others, other.others);
    resident = std::max(resident, other.resident);
    descriptors = std::max(descriptors, other.descriptors);
    threads = std::max(threads, other.threads);
  }
  bool Within(const Held& warm, bool shared) const {
    return (shared || device <= warm.device + 2 * kMiB) && own <= warm.own + 16 * kKiB &&
           others <= warm.others + 512 * kKiB && resident <= warm.resident + 16 * kMiB &&
           descriptors <= warm.descriptors && threads <= warm.threads;
  }
  void Print(FILE* to, const char* when) const {
    std::fprintf(to,
                 "%s: device %.1f MiB, heap %.3f MiB and %.2f of others, resident %.1f MiB, %lld "
                 "fds, %lld threads\n",
                 when, static_cast<double>(device) / kMiB, static_cast<double>(own) / kMiB,
                 static_cast<double>(others) / kMiB, static_cast<double>(resident) / kMiB,
                 static_cast<long long>(descriptors), static_cast<long long>(threads));
  }
};

void PrintCounts(int rounds) {
  std::printf("%d rounds", rounds);
  const std::pair<const char*, const std::atomic<int64_t>*> all[] = {
      {"engines", &counts.engines},        {"eager steps", &counts.steps},
      {"recordings", &counts.recordings},  {"replays", &counts.replays},
      {"leases", &counts.leases},          {"fetches", &counts.fetches},
      {"copies", &counts.copies},          {"budgets", &counts.budgets},
      {"cancels", &counts.cancels},        {"failed reads", &counts.failed_reads},
      {"refused", &counts.refused},        {"wrong", &counts.wrong},
      {"unexplained", &counts.unexplained}};
  for (const auto& [name, count] : all) {
    std::printf(", %lld %s", static_cast<long long>(*count), name);
  }
  std::printf("\n");
}

int Run(double seconds, double round_seconds, bool shared) {
  const Inputs inputs;
  Held warm{}, now{};
  int grown = 0, n = 0;
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  for (; ended == 0 && Clock::now() < until; ++n) {
    Round(inputs, n, round_seconds);
    now = Held::Now();
    if (n < kWarmRounds) {
      warm.Widen(now);
    } else if (!now.Within(warm, shared)) {
      if (++grown < 5) now.Print(stderr, ("grown in round " + std::to_string(n)).c_str());
    }
  }
  PrintCounts(n);
  warm.Print(stdout, "warm");
  now.Print(stdout, "last");
  const bool good = counts.wrong == 0 && counts.unexplained == 0 && grown == 0 && n > kWarmRounds &&
                    counts.replays > 0 && counts.fetches > 0 && counts.failed_reads > 0;
  std::printf("%s: grown in %d rounds\n", good ? "passed" : "FAILED", grown);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace moert::soak

int main(int argc, char** argv) {
  run_without_thread_caches(argv);
  const bool shared = argc >= 2 && std::strcmp(argv[1], "--shared") == 0;
  argc -= shared;
  argv += shared;
  const double seconds = argc >= 2 ? std::atof(argv[1]) : 0;
  const double round = argc == 3 ? std::atof(argv[2]) : std::min(4.0, seconds / 12);
  if (argc > 3 || seconds <= 0 || round <= 0) {
    std::fprintf(stderr, "usage: gpu.soak [--shared] SECONDS [ROUND_SECONDS]\n");
    return 2;
  }
  // Counts must not grow when a thread allocates, or a kernel is launched, for the first time.
  mallopt(M_ARENA_MAX, 1);
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  const absl::Status cuda = moert::CudaStatus();
  if (!cuda.ok()) {
    std::printf("skipped: %s\n", cuda.ToString().c_str());
    return 77;
  }
  std::signal(SIGTERM, [](int) { moert::soak::ended = 1; });
  return moert::soak::Run(seconds, round, shared);
}
