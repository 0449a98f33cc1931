// Collectives of a group of threads: the last rank that arrives does the work, while the others
// wait with their buffers.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "moert/parallel/collectives.h"

namespace moert {
namespace {

enum class Operation { kNone, kAllReduce, kAllGather, kAllToAll };

const char* Name(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
      return "all_reduce";
    case Operation::kAllGather:
      return "all_gather";
    case Operation::kAllToAll:
      return "all_to_all";
    case Operation::kNone:
      break;
  }
  return "no call";
}

// Timeouts are cut into waits of this length, because a long one may overflow the clock.
constexpr auto kLongestWait = std::chrono::minutes(1);

/// One rank's call.
struct Call {
  Operation operation = Operation::kNone;
  const std::byte* send = nullptr;
  std::byte* recv = nullptr;
  int64_t size = 0;  // floats, or bytes
  absl::Span<const int64_t> send_bytes, recv_bytes;
};

int64_t Before(absl::Span<const int64_t> bytes, size_t rank) {
  int64_t sum = 0;
  for (size_t r = 0; r < rank; ++r) sum += bytes[r];
  return sum;
}

class Group {
 public:
  Group(int size, int64_t timeout_ns)
      : size_(size), timeout_(timeout_ns), calls_(static_cast<size_t>(size)) {}

  int size() const { return size_; }

  absl::Status Run(int rank, const Call& call) {
    const MutexLock lock(&mu_);
    MOERT_RETURN_IF_ERROR(failure_);
    calls_[rank] = call;
    const int64_t mine = generation_;
    if (++arrived_ == size()) {
      failure_ = ErrorOr(absl::StatusCode::kInternal, [this] {
        mu_.AssertHeld();
        return Execute();
      });
      Finish();
      return failure_;
    }
    const auto begin = std::chrono::steady_clock::now();
    while (generation_ == mine && failure_.ok()) {
      const auto left =
          std::chrono::nanoseconds(timeout_) - (std::chrono::steady_clock::now() - begin);
      if (left.count() <= 0) {
        failure_ = ErrorOr(absl::StatusCode::kDeadlineExceeded, [&] {
          mu_.AssertHeld();
          return TimedOut(call.operation);
        });
        changed_.NotifyAll();
        break;
      }
      changed_.WaitFor(&mu_, std::min<std::chrono::nanoseconds>(left, kLongestWait));
    }
    return generation_ == mine ? failure_ : result_;
  }

  void Abort(int rank, const absl::Status& why) {
    const MutexLock lock(&mu_);
    if (!failure_.ok()) return;
    const absl::StatusCode code = why.ok() ? absl::StatusCode::kAborted : why.code();
    failure_ = ErrorOr(code, [&] {
      return absl::Status(code,
                          fmt::format("rank {} gave up: {}", rank, std::string(why.message())));
    });
    changed_.NotifyAll();
  }

  absl::Status status() {
    const MutexLock lock(&mu_);
    return failure_;
  }

 private:
  void Finish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    result_ = failure_;
    arrived_ = 0;
    for (Call& call : calls_) call = {};
    ++generation_;
    changed_.NotifyAll();
  }

  absl::Status TimedOut(Operation operation) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<size_t> missing;
    for (size_t r = 0; r < calls_.size(); ++r) {
      if (calls_[r].operation == Operation::kNone) missing.push_back(r);
    }
    return DeadlineExceeded("{}: rank {} of {} did not come within {} ms", Name(operation),
                            fmt::join(missing, ", "), calls_.size(), timeout_ / 1'000'000);
  }

  absl::Status Execute() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Call& first = calls_[0];
    for (size_t r = 1; r < calls_.size(); ++r) {
      const Call& call = calls_[r];
      if (call.operation == first.operation && call.size == first.size) continue;
      return InvalidArgument("ranks disagree: rank 0 calls {} of {}, rank {} {} of {}",
                             Name(first.operation), first.size, r, Name(call.operation), call.size);
    }
    switch (first.operation) {
      case Operation::kAllReduce:
        return Reduce();
      case Operation::kAllGather:
        return Gather();
      case Operation::kAllToAll:
        return Exchange();
      case Operation::kNone:
        break;
    }
    return absl::InternalError("a collective that is none");
  }

  absl::Status Reduce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto count = static_cast<size_t>(calls_[0].size);
    std::array<float, 1024> sum;
    for (size_t at = 0; at < count; at += sum.size()) {
      const size_t block = std::min(sum.size(), count - at);
      const size_t offset = at * sizeof(float), bytes = block * sizeof(float);
      std::memcpy(sum.data(), calls_[0].send + offset, bytes);
      for (size_t r = 1; r < calls_.size(); ++r) {
        const auto* more = reinterpret_cast<const float*>(calls_[r].send) + at;
        for (size_t i = 0; i < block; ++i) sum[i] += more[i];
      }
      for (const Call& call : calls_) std::memcpy(call.recv + offset, sum.data(), bytes);
    }
    return absl::OkStatus();
  }

  absl::Status Gather() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto bytes = static_cast<size_t>(calls_[0].size);
    for (const Call& to : calls_) {
      for (size_t r = 0; r < calls_.size(); ++r) {
        std::byte* const at = to.recv + r * bytes;
        if (bytes > 0 && at != calls_[r].send) std::memcpy(at, calls_[r].send, bytes);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Exchange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (size_t to = 0; to < calls_.size(); ++to) {
      for (size_t from = 0; from < calls_.size(); ++from) {
        const int64_t bytes = calls_[from].send_bytes[to];
        if (bytes != calls_[to].recv_bytes[from]) {
          return InvalidArgument("all_to_all: rank {} sends {} bytes to rank {}, which expects {}",
                                 from, bytes, to, calls_[to].recv_bytes[from]);
        }
        if (bytes == 0) continue;
        std::memcpy(calls_[to].recv + Before(calls_[to].recv_bytes, from),
                    calls_[from].send + Before(calls_[from].send_bytes, to), bytes);
      }
    }
    return absl::OkStatus();
  }

  const int size_;
  const int64_t timeout_;
  Mutex mu_;
  CondVar changed_;
  std::vector<Call> calls_ ABSL_GUARDED_BY(mu_);
  int arrived_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status result_ ABSL_GUARDED_BY(mu_);   // of the last call that all ranks made
  absl::Status failure_ ABSL_GUARDED_BY(mu_);  // once set, stays
};

class ThreadCollectives final : public Collectives {
 public:
  ThreadCollectives(std::shared_ptr<Group> group, int rank, int size)
      : group_(std::move(group)), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  absl::Status AllReduce(float* data, int64_t count, void* stream) override {
    MOERT_RETURN_IF_ERROR(CheckHost(stream));
    auto* bytes = reinterpret_cast<std::byte*>(data);
    return group_->Run(rank_, {Operation::kAllReduce, bytes, bytes, count, {}, {}});
  }
  absl::Status AllGather(const void* mine, int64_t bytes, void* all, void* stream) override {
    MOERT_RETURN_IF_ERROR(CheckHost(stream));
    return group_->Run(rank_, {Operation::kAllGather,
                               static_cast<const std::byte*>(mine),
                               static_cast<std::byte*>(all),
                               bytes,
                               {},
                               {}});
  }
  absl::Status AllToAll(const void* send, absl::Span<const int64_t> send_bytes, void* recv,
                        absl::Span<const int64_t> recv_bytes, void* stream) override {
    MOERT_RETURN_IF_ERROR(CheckHost(stream));
    const auto ranks = static_cast<size_t>(size_);
    if (send_bytes.size() != ranks || recv_bytes.size() != ranks) {
      return InvalidArgument("all_to_all: {} counts to send, {} to receive; the group has {} ranks",
                             send_bytes.size(), recv_bytes.size(), size_);
    }
    return group_->Run(rank_, {Operation::kAllToAll, static_cast<const std::byte*>(send),
                               static_cast<std::byte*>(recv), 0, send_bytes, recv_bytes});
  }
  absl::Status Wait(void* stream, int64_t /*timeout_ns*/) override {
    MOERT_RETURN_IF_ERROR(CheckHost(stream));
    return group_->status();
  }
  void Abort(const absl::Status& why) override { group_->Abort(rank_, why); }

 private:
  static absl::Status CheckHost(const void* stream) {
    if (stream == nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError("threads exchange host memory: stream must be null");
  }

  const std::shared_ptr<Group> group_;
  const int rank_, size_;
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Collectives>>> MakeThreadCollectives(
    int size, int64_t timeout_ns) try {
  constexpr int kMostRanks = 1024;
  if (size < 1 || size > kMostRanks) {
    return InvalidArgument("a group of {} ranks: must be in [1, {}]", size, kMostRanks);
  }
  if (timeout_ns < 1) return InvalidArgument("timeout_ns {}: must be 1 or more", timeout_ns);
  auto group = std::make_shared<Group>(size, timeout_ns);
  std::vector<std::unique_ptr<Collectives>> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.push_back(std::make_unique<ThreadCollectives>(group, r, size));
  }
  return ranks;
} catch (...) {
  return ExceptionStatus("a group of threads");
}

}  // namespace moert
