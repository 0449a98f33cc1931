// The simulated link of the virtual clock: some transfers at once, in the order of service.
#include <algorithm>
#include <vector>

#include "base/exception_status.h"
#include "transfer/transfer_queue.h"

namespace moert {
namespace {

class VirtualLink final : public TransferQueue {
 public:
  VirtualLink(const ExpertSource* source, VirtualClock* clock, const HardwareProfile* profile)
      : source_(source), clock_(clock), profile_(profile) {
    active_.reserve(profile->link_streams);
  }

  void Submit(const Transfer& transfer) override {
    // Transfers that ended before now free the link first: service follows logical time.
    Run(clock_->now_ns());
    waiting_.Push(transfer, clock_->now_ns());
    Start(clock_->now_ns());
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
    if (Deliver(done)) return true;
    if (finished_.empty() && active_.empty()) return false;
    const int64_t next =
        finished_.empty() ? Earliest()->finished_ns : finished_.front().finished_ns;
    clock_->AdvanceTo(next + profile_->arrival_ns);
    Run(clock_->now_ns());
    return Deliver(done);
  }

 private:
  struct Active {
    WaitingTransfers::Job job;
    int64_t started_ns = 0;
    int64_t flows_ns = 0;  // from when `bytes` are on their way at `rate`
    double bytes = 0;      // left at flows_ns
    double rate = 0;       // a second
    int64_t finished_ns = 0;
  };

  std::vector<Active>::iterator Earliest() {
    return std::min_element(active_.begin(), active_.end(), [](const Active& a, const Active& b) {
      return a.finished_ns < b.finished_ns;
    });
  }

  /// Starts what there is a stream for.
  void Start(int64_t at) {
    while (!waiting_.empty() && static_cast<int>(active_.size()) < profile_->link_streams) {
      Active a;
      a.job = waiting_.Pop();
      a.started_ns = std::max(at, a.job.submitted_ns);
      a.flows_ns = a.started_ns + profile_->link_latency_ns;
      a.bytes = static_cast<double>(a.job.transfer.bytes);
      active_.push_back(a);
    }
    Share(at);
  }

  /// Streams share the link's rate evenly, none exceeds its own.
  void Share(int64_t at) {
    if (active_.empty()) return;
    double rate = profile_->link_bytes_per_s / static_cast<double>(active_.size());
    if (profile_->stream_bytes_per_s > 0) rate = std::min(rate, profile_->stream_bytes_per_s);
    for (Active& a : active_) {
      if (a.rate == rate) continue;
      if (a.rate > 0 && at > a.flows_ns) {
        a.bytes = std::max(0.0, a.bytes - 1e-9 * a.rate * static_cast<double>(at - a.flows_ns));
        a.flows_ns = at;
      }
      a.rate = rate;
      a.finished_ns = a.flows_ns + HardwareProfile::WholeNs(1e9 * a.bytes / rate);
    }
  }

  absl::Status Read(const Transfer& t) const {
    if (source_ == nullptr) return absl::OkStatus();
    try {
      return source_->ReadRecord(t.key.layer, t.key.expert, t.source_version, t.dst);
    } catch (...) {
      return ExceptionStatus("reading an expert");
    }
  }

  /// Completes everything that ends by `now`.
  void Run(int64_t now) {
    while (!active_.empty()) {
      const auto first = Earliest();
      if (first->finished_ns > now) return;
      finished_.reserve(finished_.size() + 1);  // nothing fails once it has left active_
      const Active a = *first;
      active_.erase(first);
      const Transfer& t = a.job.transfer;
      finished_.push_back(
          {t.key, t.version, Read(t), t.bytes, a.job.submitted_ns, a.started_ns, a.finished_ns});
      Start(a.finished_ns);
    }
  }

  /// Appends what has been seen by now; false when there is nothing.
  bool Deliver(std::vector<TransferDone>* done) {
    const int64_t seen_ns = clock_->now_ns() - profile_->arrival_ns;
    const auto end = std::find_if(finished_.begin(), finished_.end(),
                                  [&](const TransferDone& d) { return d.finished_ns > seen_ns; });
    const bool any = end != finished_.begin();
    done->reserve(done->size() + static_cast<size_t>(end - finished_.begin()));
    done->insert(done->end(), finished_.begin(), end);
    finished_.erase(finished_.begin(), end);
    return any;
  }

  const ExpertSource* source_;
  VirtualClock* clock_;
  const HardwareProfile* profile_;
  WaitingTransfers waiting_;
  std::vector<Active> active_;          // at most link_streams
  std::vector<TransferDone> finished_;  // in the order of finishing, not delivered
};

}  // namespace

std::unique_ptr<TransferQueue> MakeVirtualLink(const ExpertSource* source, VirtualClock* clock,
                                               const HardwareProfile* profile) {
  return std::make_unique<VirtualLink>(source, clock, profile);
}

}  // namespace moert
