// Strategies that promise that nothing waits: between the begin and the end of a step the thread
// that computes calls nothing that waits. Three witnesses beside our own counter: the timeline; an
// interposer, as this program defines the calls that wait and counts those of the computing thread;
// and the kernel's count of how often that thread gave up the processor.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "moert/engine.h"
#include "moert/offline/calibration.h"
#include "moert/tools/trace.h"
#include "support/calibrations.h"
#include "support/catch.h"
#include "support/run_engine.h"
#include "support/sanitized.h"
#include "support/synthetic_source.h"
#include "support/temp_dir.h"

// Sanitizers define these calls themselves.
#if !defined(MOERT_ADDRESS_SANITIZER) && !defined(MOERT_THREAD_SANITIZER)
#define MOERT_TEST_INTERPOSES 1
#endif

namespace {

struct Calls {
  int64_t waits = 0;      // for a condition
  int64_t reads = 0;      // of files
  int64_t sleeps = 0;     // of any length
  int64_t contended = 0;  // locks that somebody else held at that moment
};
thread_local bool computing = false;
thread_local Calls calls;

}  // namespace

#ifdef MOERT_TEST_INTERPOSES
namespace {
/// Several versions of a symbol may exist; the default is the one that programs get.
template <typename F>
F Next(const char* name, const char* version) {
  void* next = dlvsym(RTLD_NEXT, name, version);
  if (next == nullptr) next = dlsym(RTLD_NEXT, name);
  return reinterpret_cast<F>(next);
}
}  // namespace

extern "C" {
int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  static const auto next = Next<decltype(&pthread_cond_wait)>("pthread_cond_wait", "GLIBC_2.3.2");
  calls.waits += computing;
  return next(condition, mutex);
}
int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* until) {
  static const auto next =
      Next<decltype(&pthread_cond_timedwait)>("pthread_cond_timedwait", "GLIBC_2.3.2");
  calls.waits += computing;
  return next(condition, mutex, until);
}
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  static const auto next =
      Next<decltype(&pthread_cond_clockwait)>("pthread_cond_clockwait", "GLIBC_2.30");
  calls.waits += computing;
  return next(condition, mutex, clock, until);
}
int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto next = Next<int (*)(pthread_mutex_t*)>("pthread_mutex_lock", "GLIBC_2.2.5");
  if (computing && pthread_mutex_trylock(mutex) == 0) return 0;
  calls.contended += computing;
  return next(mutex);
}
ssize_t pread(int fd, void* to, size_t bytes, off_t at) {
  static const auto next = Next<decltype(&pread)>("pread", "GLIBC_2.2.5");
  calls.reads += computing;
  return next(fd, to, bytes, at);
}
ssize_t read(int fd, void* to, size_t bytes) {
  static const auto next = Next<decltype(&read)>("read", "GLIBC_2.2.5");
  calls.reads += computing;
  return next(fd, to, bytes);
}
int nanosleep(const timespec* time, timespec* left) {
  static const auto next = Next<decltype(&nanosleep)>("nanosleep", "GLIBC_2.2.5");
  calls.sleeps += computing;
  return next(time, left);
}
int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left) {
  static const auto next = Next<decltype(&clock_nanosleep)>("clock_nanosleep", "GLIBC_2.17");
  calls.sleeps += computing;
  return next(clock, flags, time, left);
}
}  // extern "C"
#endif

namespace moert {
namespace {

using test::HiddenProcess;
using test::SyntheticShape;
using test::SyntheticSource;

/// Every read of an expert takes its time.
class SlowSource final : public SyntheticSource {
 public:
  explicit SlowSource(const SyntheticShape& shape) : SyntheticSource(shape) {}
  /// Each of four versions has the name of a scheme.
  absl::string_view version_name(int v) const override {
    return num_versions() > 2 ? test::kSchemeErrors[v].name : SyntheticSource::version_name(v);
  }
  absl::Status ReadRecord(int layer, int expert, int version,
                          absl::Span<std::byte> dst) const override {
    if (slow) std::this_thread::sleep_for(std::chrono::microseconds(300));
    return SyntheticSource::ReadRecord(layer, expert, version, dst);
  }
  std::atomic<bool> slow{false};
};

/// Counts the spans of the timeline's track of stalls, and of the link's.
struct Spans final : TraceSink {
  int64_t stalls = 0, transfers = 0;
  void OnCall(const TraceCall&) override {}
  void OnSpan(const TimelineSpan& span) override {
    stalls += span.track == TimelineTrack::kStalls;
    transfers += span.track == TimelineTrack::kLink;
  }
};

struct Observed {
  Calls calls;
  int64_t switches = 0;  // that the computing thread asked for, as the kernel counts them
  int64_t steps = 0;
  Spans spans;
  EngineStats stats;
};

int64_t VoluntarySwitches() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

const SyntheticShape kShape{3, 12, 2, 128, 96, 32, true, false, true};

/// Decode and prefill steps whose experts change, while transfers take longer than steps: four
/// workloads, and further ones until so many promotions were seen, for a busy machine gives its
/// time to whom it likes.
Observed Run(const std::string& strategy, double share, int64_t promotions,
             const SyntheticShape& shape = kShape) {
  constexpr int kWorkloads = 4, kMostWorkloads = 200;
  const auto source = std::make_shared<SlowSource>(shape);
  const auto sink = std::make_shared<Spans>();
  EngineOptions options;
  options.strategy = strategy;
  options.budget = Budget::Fraction(share);
  options.threads = 1;  // the caller's: no pool whose threads wait for each other
  options.max_tokens_per_forward = 16;
  options.trace = sink;
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  source->slow = true;
  Observed seen;
  std::vector<float> out;
  out.reserve(16 * 128 * 3);
  const Spans before = *sink;
  for (int phase = 0;
       phase < kWorkloads || (phase < kMostWorkloads && (*engine)->stats().promotions < promotions);
       ++phase) {
    HiddenProcess process(128, 50 + phase);  // another workload each
    const std::vector<float> often = process.Next(1);
    for (int s = 0; s < 300; ++s) {
      const bool prefill = s % 100 == 99;
      const int64_t rows = prefill ? 16 : 1;
      const std::vector<float> x = prefill || s % 4 == 0 ? process.Next(rows) : often;
      out.clear();
      const Calls calls_before = calls;
      const int64_t switches_before = VoluntarySwitches();
      computing = true;
      const absl::Status status =
          test::RunStep(engine->get(), prefill ? Phase::kPrefill : Phase::kDecode, x, rows, &out);
      computing = false;
      seen.switches += VoluntarySwitches() - switches_before;
      seen.calls.waits += calls.waits - calls_before.waits;
      seen.calls.reads += calls.reads - calls_before.reads;
      seen.calls.sleeps += calls.sleeps - calls_before.sleeps;
      seen.calls.contended += calls.contended - calls_before.contended;
      ++seen.steps;
      REQUIRE_OK(status);
    }
  }
  seen.stats = (*engine)->stats();
  seen.spans.stalls = sink->stalls - before.stalls;
  seen.spans.transfers = sink->transfers - before.transfers;
  return seen;
}

void CheckNeverWaits(const std::string& strategy, const Observed& seen) {
  INFO(strategy << ": " << seen.calls.waits << " waits, " << seen.calls.reads << " reads, "
                << seen.calls.sleeps << " sleeps, " << seen.calls.contended << " contended locks, "
                << seen.switches << " switches, " << seen.spans.transfers << " transfers in "
                << seen.steps << " steps");
  CHECK(StalledNs(seen.stats) == 0);
  CHECK(seen.spans.stalls == 0);
  CHECK(seen.calls.waits == 0);
  CHECK(seen.calls.reads == 0);
  CHECK(seen.calls.sleeps == 0);
#ifdef MOERT_TEST_INTERPOSES
  // The lock that the computing thread shares with the readers is held for a few instructions; what
  // the kernel saw is that, and the allocator's.
  CHECK(seen.switches <= seen.calls.contended + seen.steps / 50);
  // Each reader may still be on its way to sleep from opening.
  CHECK(seen.calls.contended <= 4 * seen.spans.transfers + EngineOptions().io_threads);
#endif
}

TEST_CASE("two versions: versions change under way and the computing thread never waits") {
  const std::string strategy = GENERATE("dynaexq:hi=bf16,lo=low,interval_ms=0.5,beta=0.5,spare=2",
                                        "graded:wait=0,hi=bf16,lo=low,n=16,margin=0",
                                        "dynaexq:hi=bf16,lo=low,interval_ms=10000000");
  const bool moves = !absl::StrContains(strategy, "interval_ms=10000000");
  const int64_t enough = moves ? 10 : 0;
  const Observed seen = Run(strategy, 0.8, enough);
  CheckNeverWaits(strategy, seen);
  CHECK(seen.stats.promotions >= enough);
  CHECK((seen.stats.promotions > 0) == moves);
}

TEST_CASE("four versions: likewise") {
  SyntheticShape shape = kShape;
  shape.intermediate = 128;
  shape.lower_versions = 2;
  const test::TempDir dir;
  const std::string path = dir / "calibration";
  test::WriteFile(path,
                  CalibrationToJson(test::CalibrationInSchemes(SyntheticSource(shape).model())));
  const std::string strategy =
      "dynaexq:versions=w8a16_g128/w4a16_g128/w3a16_g128_asym/"
      "w2a16_g64_asym,interval_ms=0.5,beta=0.5,"
      "spare=2,calibration=" +
      path;
  const Observed seen = Run(strategy, 0.5, 10, shape);
  CheckNeverWaits(strategy, seen);
  CHECK(seen.stats.promotions >= 10);
}

TEST_CASE("the witnesses see waiting where there is some") {
  const Observed seen = Run("on-demand:scheme=bf16", 0.5, 0);
  CHECK(StalledNs(seen.stats) > 0);
  CHECK(seen.spans.stalls > 50);
  CHECK(seen.switches > 50);
#ifdef MOERT_TEST_INTERPOSES
  CHECK(seen.calls.waits > 50);
  // And the other calls are counted, too.
  const Calls before = calls;
  computing = true;
  std::this_thread::sleep_for(std::chrono::microseconds(1));
  char byte;
  (void)!read(-1, &byte, 1);
  (void)!pread(-1, &byte, 1, 0);
  computing = false;
  CHECK(calls.sleeps == before.sleeps + 1);
  CHECK(calls.reads == before.reads + 2);
#endif
}

}  // namespace
}  // namespace moert
