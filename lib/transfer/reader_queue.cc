// I/O threads that read experts on the wall clock.
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "transfer/transfer_queue.h"

namespace moert {
namespace {

class ReaderQueue final : public TransferQueue {
 public:
  ReaderQueue(const ExpertSource* source, const Clock* clock, int threads,
              std::shared_ptr<LinkPacer> pacer)
      : source_(source), clock_(clock), pacer_(std::move(pacer)) {
    threads_.reserve(threads);
  }

  absl::Status Start(int threads) {
    for (int i = 0; i < threads; ++i) {
      try {
        threads_.emplace_back([this] { Serve(); });
      } catch (const std::system_error& e) {
        return ResourceExhausted("cannot start reader thread {} of {}: {}", i + 1, threads,
                                 e.what());
      }
    }
    return absl::OkStatus();
  }

  ~ReaderQueue() override {
    {
      const MutexLock lock(&mu_);
      stopping_ = true;
    }
    work_.NotifyAll();
    for (std::thread& thread : threads_) thread.join();
  }

  void Submit(const Transfer& transfer) override {
    bool wake = true;
    {
      const MutexLock lock(&mu_);
      // Waking a thread takes the caller some us, and several transitions come at once when a step
      // begins. No call waits for them, so the reader woken for the first one wakes the next.
      if (transfer.reason == LoadReason::kBackground) wake = waiting_.empty();
      // Reserves room for the result, so that a reader cannot fail to deliver it.
      if (finished_.capacity() <= static_cast<size_t>(in_flight_)) {
        finished_.reserve(2 * static_cast<size_t>(in_flight_) + 16);
      }
      waiting_.Push(transfer, clock_->now_ns());
      ++in_flight_;
    }
    if (wake) work_.NotifyOne();
  }

  void Raise(ExpertKey key, int version, LoadReason reason) override {
    const MutexLock lock(&mu_);
    waiting_.Raise(key, version, reason);
  }

  bool Cancel(ExpertKey key, int version) override {
    const MutexLock lock(&mu_);
    if (!waiting_.Remove(key, version)) return false;
    --in_flight_;
    return true;
  }

  void Poll(std::vector<TransferDone>* done) override {
    const MutexLock lock(&mu_);
    Deliver(done);
  }

  bool Wait(std::vector<TransferDone>* done) override {
    const MutexLock lock(&mu_);
    if (in_flight_ == 0) return false;
    while (finished_.empty()) arrived_.Wait(&mu_);
    Deliver(done);
    return true;
  }

 private:
  absl::Status Read(const Transfer& transfer) {
    // An exception of a host's source must not end the reader thread.
    try {
      return source_->ReadRecord(transfer.key.layer, transfer.key.expert, transfer.source_version,
                                 transfer.dst);
    } catch (...) {
      return ExceptionStatus("reading an expert");
    }
  }

  void Serve() {
    // By default threads sleep some 50 us longer than asked to, a fifth of a record's turn.
    if (pacer_ != nullptr) prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    std::optional<Turn> turn;
    while ((turn = NextTurn()).has_value()) {
      const WaitingTransfers::Job& job = turn->job;
      absl::Status status = Read(job.transfer);
      if (pacer_ != nullptr) {
        // A clock that steps back must not make the turn longer than planned.
        const int64_t early_ns = turn->until_ns - std::max(clock_->now_ns(), turn->started_ns);
        if (early_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(early_ns));
      }
      const MutexLock lock(&mu_);
      finished_.push_back({job.transfer.key, job.transfer.version, std::move(status),
                           job.transfer.bytes, job.submitted_ns, turn->started_ns,
                           clock_->now_ns()});
      arrived_.NotifyAll();
    }
  }

  /// A transfer that a reader serves now. With a pacer it arrives at until_ns at the earliest.
  struct Turn {
    WaitingTransfers::Job job;
    int64_t started_ns = 0;
    int64_t until_ns = 0;
  };
  /// Waits for the next turn; none when the queue stops.
  std::optional<Turn> NextTurn() {
    const MutexLock lock(&mu_);
    while (true) {
      while (!stopping_ && waiting_.empty()) work_.Wait(&mu_);
      if (stopping_) return std::nullopt;
      const int64_t busy_ns = pacer_ != nullptr ? pacer_->busy_ns() : 0;
      if (busy_ns <= 0) break;
      constexpr int64_t kLongest = 100'000'000;  // then reads the clock again, which may step
      work_.WaitFor(&mu_, std::chrono::nanoseconds(std::min(busy_ns, kLongest)));
    }
    Turn turn;
    turn.job = waiting_.Pop();
    // More transfers are waiting: wakes another reader, which their Submit may not have done.
    if (!waiting_.empty()) work_.NotifyOne();
    turn.started_ns = clock_->now_ns();
    if (pacer_ != nullptr) turn.until_ns = pacer_->Reserve(turn.job.transfer.bytes);
    return turn;
  }

  void Deliver(std::vector<TransferDone>* done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    done->reserve(done->size() + finished_.size());
    in_flight_ -= static_cast<int64_t>(finished_.size());
    std::move(finished_.begin(), finished_.end(), std::back_inserter(*done));
    finished_.clear();
  }

  const ExpertSource* source_;
  const Clock* clock_;
  const std::shared_ptr<LinkPacer> pacer_;  // null: the link is not paced
  Mutex mu_;
  CondVar work_;
  CondVar arrived_;
  WaitingTransfers waiting_ ABSL_GUARDED_BY(mu_);
  std::vector<TransferDone> finished_ ABSL_GUARDED_BY(mu_);
  int64_t in_flight_ ABSL_GUARDED_BY(mu_) = 0;  // submitted and not delivered
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TransferQueue>> MakeReaderQueue(const ExpertSource* source,
                                                               const Clock* clock, int threads,
                                                               std::shared_ptr<LinkPacer> pacer) {
  auto queue = std::make_unique<ReaderQueue>(source, clock, threads, std::move(pacer));
  MOERT_RETURN_IF_ERROR(queue->Start(threads));
  return queue;
}

}  // namespace moert
