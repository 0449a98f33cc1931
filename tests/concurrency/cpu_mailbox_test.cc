// Jobs between a device and a thread of the host (kernels/cuda/cache/cpu_mailbox.h), with two
// threads that play the two. The memory of jobs and rows is plain: the thread sanitizer sees who
// has it when.
#include "kernels/cuda/cache/cpu_mailbox.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "support/catch.h"

namespace moert {
namespace {

using cuda::CpuAnswer;
using cuda::CpuCall;
using cuda::CpuMailbox;

constexpr size_t kMost = 64;

uint64_t NowNs() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

/// Memory that both see.
struct Shared {
  CpuMailbox mailbox;
  size_t count = 0;
  std::vector<int64_t> x = std::vector<int64_t>(kMost);
  std::vector<int64_t> rows = std::vector<int64_t>(kMost);
};

int64_t Product(int64_t x) { return 3 * x + 1; }

/// The thread of the host: answers what is posted, in the way that `behave` says of a job.
class Host {
 public:
  enum class Behaviour { kInTime, kLate, kFails };
  using Behave = Behaviour (*)(uint64_t job);

  Host(Shared* shared, Behave behave) : shared_(shared), behave_(behave) {
    thread_ = std::thread([this] { Serve(); });
  }
  ~Host() { Stop(); }
  void Stop() {
    stopping_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  int64_t answered() const { return answered_.load(); }

 private:
  void Serve() {
    while (!stopping_.load()) {
      const uint64_t job = PostedJob(shared_->mailbox);
      if (job == 0) {
        std::this_thread::yield();
        continue;
      }
      const Behaviour behaviour = behave_(job);
      if (behaviour == Behaviour::kLate) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      // A late one still reads and writes what is its own.
      for (size_t i = 0; i < shared_->count; ++i) shared_->rows[i] = Product(shared_->x[i]);
      AnswerJob(&shared_->mailbox, job, behaviour != Behaviour::kFails);
      answered_.fetch_add(1);
    }
  }

  Shared* const shared_;
  const Behave behave_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> answered_{0};
  std::thread thread_;
};

/// The device: calls one after another, as the decision's and the waiting kernel make them.
class Device {
 public:
  explicit Device(Shared* shared) : shared_(shared) {}

  enum class Outcome { kNotGiven, kByCpu, kTakenBack };
  /// A call that would give `count` rows and wait for `patience_ns`. It goes on with a result that
  /// is right in any case.
  Outcome Call(size_t count, int64_t patience_ns, std::vector<int64_t>* out) {
    std::vector<int64_t> own(count);
    for (int64_t& x : own) x = static_cast<int64_t>(rng_() % 1000000);
    out->assign(count, -1);
    Outcome outcome = Outcome::kNotGiven;
    if (CpuIdle(shared_->mailbox, call_)) {
      shared_->count = count;
      for (size_t i = 0; i < count; ++i) shared_->x[i] = own[i];
      PostJob(&shared_->mailbox, &call_, 0, 0);
      call_.deadline = NowNs() + static_cast<uint64_t>(patience_ns);
      CpuAnswer found = CpuAnswer::kNone;
      do {
        found = AnswerTo(shared_->mailbox, call_.posted);
        std::this_thread::yield();
      } while (KeepsLooking(call_, found, NowNs()));
      SettleJob(&call_, found);
      outcome = found == CpuAnswer::kRows ? Outcome::kByCpu : Outcome::kTakenBack;
    }
    for (size_t i = 0; i < count; ++i) {
      (*out)[i] = outcome == Outcome::kByCpu ? shared_->rows[i] : Product(own[i]);
      wrong_ += (*out)[i] != Product(own[i]);
    }
    return outcome;
  }
  int64_t wrong() const { return wrong_; }
  const CpuCall& call() const { return call_; }

 private:
  Shared* const shared_;
  CpuCall call_;
  std::mt19937 rng_{5};
  int64_t wrong_ = 0;
};

struct Counts {
  int64_t not_given = 0, by_cpu = 0, taken_back = 0;
};
Counts Run(Device* device, int calls, int64_t patience_ns) {
  Counts counts;
  std::vector<int64_t> out;
  for (int i = 0; i < calls; ++i) {
    switch (device->Call(1 + static_cast<size_t>(i) % kMost, patience_ns, &out)) {
      case Device::Outcome::kNotGiven:
        ++counts.not_given;
        break;
      case Device::Outcome::kByCpu:
        ++counts.by_cpu;
        break;
      case Device::Outcome::kTakenBack:
        ++counts.taken_back;
        break;
    }
  }
  return counts;
}

constexpr int64_t kLong = 60'000'000'000, kShort = 1'000'000;  // ns

TEST_CASE("a CPU in time computes every job") {
  Shared shared;
  Device device(&shared);
  Host host(&shared, [](uint64_t) { return Host::Behaviour::kInTime; });
  const Counts counts = Run(&device, 3000, kLong);
  CHECK(counts.by_cpu == 3000);
  CHECK(device.wrong() == 0);
  host.Stop();
  CHECK(host.answered() == 3000);
}

TEST_CASE("a CPU that is late now and then: its jobs are taken back, and it gets none meanwhile") {
  Shared shared;
  Device device(&shared);
  Host host(&shared, [](uint64_t job) {
    return job % 5 == 0 ? Host::Behaviour::kLate : Host::Behaviour::kInTime;
  });
  Counts all;
  for (int round = 0; round < 40; ++round) {
    // Calls that find it busy end at once.
    const Counts counts = Run(&device, 25, kShort);
    all.not_given += counts.not_given;
    all.by_cpu += counts.by_cpu;
    all.taken_back += counts.taken_back;
    std::this_thread::sleep_for(std::chrono::milliseconds(6));
  }
  CHECK(device.wrong() == 0);
  CHECK(all.by_cpu > 0);
  CHECK(all.taken_back > 0);
  CHECK(all.not_given > 0);
  CHECK(all.by_cpu + all.taken_back == static_cast<int64_t>(device.call().posted));
}

TEST_CASE("a host's thread that never runs costs one deadline") {
  Shared shared;
  Device device(&shared);
  const Counts counts = Run(&device, 1000, kShort);
  CHECK(counts.taken_back == 1);
  CHECK(counts.not_given == 999);
  CHECK(device.wrong() == 0);
  CHECK(PostedJob(shared.mailbox) == 1);

  // It comes at last: answers what nobody waits for, and is given jobs again.
  Host host(&shared, [](uint64_t) { return Host::Behaviour::kInTime; });
  while (!CpuIdle(shared.mailbox, device.call())) std::this_thread::yield();
  CHECK(Run(&device, 100, kLong).by_cpu == 100);
  CHECK(device.wrong() == 0);
}

TEST_CASE("a job that fails is taken back at once, and the next one is given") {
  Shared shared;
  Device device(&shared);
  Host host(&shared, [](uint64_t job) {
    return job % 3 == 1 ? Host::Behaviour::kFails : Host::Behaviour::kInTime;
  });
  const Counts counts = Run(&device, 300, kLong);
  CHECK(counts.taken_back == 100);
  CHECK(counts.by_cpu == 200);
  CHECK(device.wrong() == 0);
}

TEST_CASE("threads come and go between jobs") {
  Shared shared;
  Device device(&shared);
  for (int life = 0; life < 20; ++life) {
    Host host(&shared, [](uint64_t) { return Host::Behaviour::kInTime; });
    CHECK(Run(&device, 50, kLong).by_cpu == 50);
  }
  CHECK(device.wrong() == 0);
}

TEST_CASE("an answer in time counts, whenever it is found") {
  Shared shared;
  CpuCall call;
  PostJob(&shared.mailbox, &call, /*now_ns=*/1000, /*planned_ns=*/500);
  CHECK(call.posted == 1);
  CHECK(call.deadline == 1000 + static_cast<uint64_t>(CpuPatience(500)));
  CHECK_FALSE(CpuIdle(shared.mailbox, call));
  CHECK(KeepsLooking(call, AnswerTo(shared.mailbox, 1), call.deadline - 1));
  CHECK_FALSE(KeepsLooking(call, AnswerTo(shared.mailbox, 1), call.deadline));
  AnswerJob(&shared.mailbox, 1, true);
  // The device may look for the first time when the deadline has passed.
  CHECK(AnswerTo(shared.mailbox, 1) == CpuAnswer::kRows);
  CHECK_FALSE(KeepsLooking(call, AnswerTo(shared.mailbox, 1), 0));
  CHECK(CpuIdle(shared.mailbox, call));
  CHECK(PostedJob(shared.mailbox) == 0);
  SettleJob(&call, CpuAnswer::kRows);
  PostJob(&shared.mailbox, &call, 0, 0);
  CHECK(AnswerTo(shared.mailbox, 2) == CpuAnswer::kNone);  // the old answer is none to this one
  AnswerJob(&shared.mailbox, 2, false);
  CHECK(AnswerTo(shared.mailbox, 2) == CpuAnswer::kNoRows);
}

}  // namespace
}  // namespace moert
