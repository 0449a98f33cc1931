// I/O threads that read experts on the wall clock.
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "fmt/format.h"
#include "transfer/transfer_queue.h"

namespace moert {
namespace {

class ReaderQueue final : public TransferQueue {
 public:
  ReaderQueue(const ExpertSource* source, const Clock* clock, int threads,
              std::shared_ptr<LinkPacer> pacer)
      : source_(source), clock_(clock), pacer_(std::move(pacer)) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Serve(); });
  }

  ~ReaderQueue() override {
    {
      std::lock_guard<std::mutex> lock(mu_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Submit(const Transfer& transfer) override {
    bool wake = true;
    {
      std::lock_guard<std::mutex> lock(mu_);
      // Waking a thread takes the caller some us, and transitions come several at a time at the
      // begin of a step. Nobody waits for those: whoever was woken for the first wakes the next.
      if (transfer.reason == LoadReason::kBackground) wake = waiting_.empty();
      waiting_.Push(transfer, clock_->now_ns());
      ++in_flight_;
    }
    if (wake) work_.notify_one();
  }

  void Raise(ExpertKey key, int version, LoadReason reason) override {
    std::lock_guard<std::mutex> lock(mu_);
    waiting_.Raise(key, version, reason);
  }

  bool Cancel(ExpertKey key, int version) override {
    std::lock_guard<std::mutex> lock(mu_);
    if (!waiting_.Remove(key, version)) return false;
    --in_flight_;
    return true;
  }

  void Poll(std::vector<TransferDone>* done) override {
    std::lock_guard<std::mutex> lock(mu_);
    Deliver(done);
  }

  bool Wait(std::vector<TransferDone>* done) override {
    std::unique_lock<std::mutex> lock(mu_);
    if (in_flight_ == 0) return false;
    arrived_.wait(lock, [this] { return !finished_.empty(); });
    Deliver(done);
    return true;
  }

 private:
  absl::Status Read(const Transfer& transfer) {
    // A host's own source must not take the reader thread down with it.
    try {
      return source_->ReadRecord(transfer.key.layer, transfer.key.expert, transfer.source_version,
                                 transfer.dst);
    } catch (const std::exception& e) {
      return absl::InternalError(fmt::format("reading layer {} expert {}: {}", transfer.key.layer,
                                             transfer.key.expert, e.what()));
    }
  }

  void Serve() {
    // Threads usually sleep some 50 us longer than asked to, a fifth of a record's turn.
    if (pacer_ != nullptr) prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    std::unique_lock<std::mutex> lock(mu_);
    while (true) {
      work_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      if (pacer_ != nullptr) {
        const int64_t busy_ns = pacer_->free_ns() - clock_->now_ns();
        if (busy_ns > 0) {
          work_.wait_for(lock, std::chrono::nanoseconds(busy_ns));
          continue;
        }
      }
      const WaitingTransfers::Job job = waiting_.Pop();
      // With a pacer its call may have met us; without, it may have been left to us.
      if (!waiting_.empty()) work_.notify_one();
      const int64_t started = clock_->now_ns();
      const int64_t until = pacer_ != nullptr ? pacer_->Reserve(job.transfer.bytes) : 0;
      lock.unlock();
      absl::Status status = Read(job.transfer);
      const int64_t early_ns = until - clock_->now_ns();
      if (early_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(early_ns));
      lock.lock();
      finished_.push_back({job.transfer.key, job.transfer.version, std::move(status),
                           job.transfer.bytes, job.submitted_ns, started, clock_->now_ns()});
      arrived_.notify_all();
    }
  }

  void Deliver(std::vector<TransferDone>* done) {
    in_flight_ -= static_cast<int64_t>(finished_.size());
    done->insert(done->end(), finished_.begin(), finished_.end());
    finished_.clear();
  }

  const ExpertSource* source_;
  const Clock* clock_;
  const std::shared_ptr<LinkPacer> pacer_;  // null: the link as it is
  std::mutex mu_;
  std::condition_variable work_;
  std::condition_variable arrived_;
  WaitingTransfers waiting_;
  std::vector<TransferDone> finished_;
  int64_t in_flight_ = 0;  // submitted and not delivered
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<TransferQueue> MakeReaderQueue(const ExpertSource* source, const Clock* clock,
                                               int threads, std::shared_ptr<LinkPacer> pacer) {
  return std::make_unique<ReaderQueue>(source, clock, threads, std::move(pacer));
}

}  // namespace moert
