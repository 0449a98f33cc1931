// The simulated link of the virtual clock.
#include <algorithm>
#include <optional>

#include "store/transfer_queue.h"

namespace moert {
namespace {

class VirtualLink final : public TransferQueue {
 public:
  VirtualLink(const ExpertSource* source, VirtualClock* clock, const HardwareProfile* profile)
      : source_(source), clock_(clock), profile_(profile) {}

  void Submit(const Transfer& transfer) override {
    // What ended before now frees the link first: service follows logical time.
    Run(clock_->now_ns());
    waiting_.Push(transfer, clock_->now_ns());
    if (!active_) Start(clock_->now_ns());
  }

  void Raise(ExpertKey key, int version, LoadReason reason) override {
    Run(clock_->now_ns());
    waiting_.Raise(key, version, reason);
  }

  bool Cancel(ExpertKey key, int version) override {
    Run(clock_->now_ns());
    return waiting_.Remove(key, version).has_value();
  }

  void Poll(std::vector<TransferDone>* done) override {
    Run(clock_->now_ns());
    Deliver(done);
  }

  bool Wait(std::vector<TransferDone>* done) override {
    Run(clock_->now_ns());
    if (finished_.empty()) {
      if (!active_) return false;
      clock_->AdvanceTo(active_->finished_ns);
      Run(clock_->now_ns());
    }
    Deliver(done);
    return true;
  }

 private:
  struct Active {
    WaitingTransfers::Job job;
    int64_t started_ns;
    int64_t finished_ns;
  };

  void Start(int64_t at) {
    if (waiting_.empty()) return;
    const WaitingTransfers::Job job = waiting_.Pop();
    const int64_t started = std::max(at, job.submitted_ns);
    active_ = Active{job, started, started + profile_->TransferNs(job.transfer.bytes)};
  }

  /// Completes everything that ends by `now`.
  void Run(int64_t now) {
    while (active_ && active_->finished_ns <= now) {
      const Active a = *active_;
      active_.reset();
      const Transfer& t = a.job.transfer;
      finished_.push_back({t.key, t.version,
                           source_->ReadRecord(t.key.layer, t.key.expert, t.source_version, t.dst),
                           t.bytes, a.job.submitted_ns, a.started_ns, a.finished_ns});
      Start(a.finished_ns);
    }
  }

  void Deliver(std::vector<TransferDone>* done) {
    done->insert(done->end(), finished_.begin(), finished_.end());
    finished_.clear();
  }

  const ExpertSource* source_;
  VirtualClock* clock_;
  const HardwareProfile* profile_;
  WaitingTransfers waiting_;
  std::optional<Active> active_;
  std::vector<TransferDone> finished_;
};

}  // namespace

std::unique_ptr<TransferQueue> MakeVirtualLink(const ExpertSource* source, VirtualClock* clock,
                                               const HardwareProfile* profile) {
  return std::make_unique<VirtualLink>(source, clock, profile);
}

}  // namespace moert
