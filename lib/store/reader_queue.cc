// I/O threads that read experts on the wall clock.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "fmt/format.h"
#include "store/transfer_queue.h"

namespace moert {
namespace {

class ReaderQueue final : public TransferQueue {
 public:
  ReaderQueue(const ExpertSource* source, const Clock* clock, int threads, double bytes_per_s)
      : source_(source), clock_(clock), bytes_per_s_(bytes_per_s) {
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
    {
      std::lock_guard<std::mutex> lock(mu_);
      waiting_.Push(transfer, clock_->now_ns());
      ++in_flight_;
    }
    work_.notify_one();
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
  /// The paced link is busy until free_ns_; a transfer reserves its share before it starts.
  int64_t ReserveLink(int64_t bytes) {
    free_ns_ = std::max(clock_->now_ns(), free_ns_) +
               static_cast<int64_t>(1e9 * static_cast<double>(bytes) / bytes_per_s_);
    return free_ns_;
  }

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
    std::unique_lock<std::mutex> lock(mu_);
    while (true) {
      work_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      const WaitingTransfers::Job job = waiting_.Pop();
      const int64_t started = clock_->now_ns();
      const int64_t until = bytes_per_s_ > 0 ? ReserveLink(job.transfer.bytes) : 0;
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
  const double bytes_per_s_;
  std::mutex mu_;
  std::condition_variable work_;
  std::condition_variable arrived_;
  WaitingTransfers waiting_;
  std::vector<TransferDone> finished_;
  int64_t in_flight_ = 0;  // submitted and not delivered
  int64_t free_ns_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<TransferQueue> MakeReaderQueue(const ExpertSource* source, const Clock* clock,
                                               int threads, double bytes_per_s) {
  return std::make_unique<ReaderQueue>(source, clock, threads, bytes_per_s);
}

}  // namespace moert
