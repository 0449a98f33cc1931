// The simulated link of the virtual clock: several transfers at once, in the order of service.
// Records that are not in RAM are first read from a file, concurrently with the link.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/exception_status.h"
#include "transfer/transfer_queue.h"

namespace moert {
namespace {

class VirtualLink final : public TransferQueue {
 public:
  VirtualLink(const ExpertSource* source, VirtualClock* clock, const HardwareProfile* profile,
              std::optional<RamTier> ram)
      : source_(source), clock_(clock), profile_(profile), has_all_(!ram.has_value()) {
    active_.reserve(profile->link_streams);
    if (has_all_) return;
    room_ = ram->room;
    readers_ = ram->readers;
    reading_.reserve(readers_);
    for (ExpertKey key : ram->kept) kept_.insert({key.layer, key.expert, 0});
  }

  void Submit(const Transfer& transfer) override {
    // First completes transfers that end before now and free the link, to follow logical time.
    Run(clock_->now_ns());
    (InRam(transfer) ? waiting_ : unread_).Push(transfer, clock_->now_ns());
    Start(clock_->now_ns());
  }

  void Raise(ExpertKey key, int version, LoadReason reason) override {
    Run(clock_->now_ns());
    unread_.Raise(key, version, reason);
    waiting_.Raise(key, version, reason);
  }

  bool Cancel(ExpertKey key, int version) override {
    Run(clock_->now_ns());
    return unread_.Remove(key, version).has_value() || waiting_.Remove(key, version).has_value();
  }

  void Poll(std::vector<TransferDone>* done) override {
    Run(clock_->now_ns());
    Deliver(done);
  }

  bool Wait(std::vector<TransferDone>* done) override {
    Run(clock_->now_ns());
    if (Deliver(done)) return true;
    while (finished_.empty()) {
      if (active_.empty() && reading_.empty()) return false;
      Run(std::min(NextEnd(active_), NextEnd(reading_)));
    }
    clock_->AdvanceTo(finished_.front().finished_ns + profile_->arrival_ns);
    Run(clock_->now_ns());
    return Deliver(done);
  }

 private:
  struct Active {
    WaitingTransfers::Job job;
    int64_t started_ns = 0;
    int64_t flows_ns = 0;  // the time from which `bytes` are carried at `rate`
    double bytes = 0;      // bytes left at flows_ns
    double rate = 0;       // bytes per second
    int64_t finished_ns = 0;
  };

  /// A record that a reader brings into RAM, or that waits in RAM for the link.
  struct Reading {
    WaitingTransfers::Job job;
    int64_t started_ns = 0;
    int64_t finished_ns = 0;
  };

  template <typename T>
  static auto Earliest(std::vector<T>& ends) {
    return std::min_element(ends.begin(), ends.end(),
                            [](const T& a, const T& b) { return a.finished_ns < b.finished_ns; });
  }
  template <typename T>
  static int64_t NextEnd(std::vector<T>& ends) {
    return ends.empty() ? std::numeric_limits<int64_t>::max() : Earliest(ends)->finished_ns;
  }

  bool InRam(const Transfer& t) const {
    return has_all_ || kept_.contains({t.key.layer, t.key.expert, t.source_version});
  }

  void Keep(const Transfer& t) {
    if (t.bytes > room_ || InRam(t)) return;
    kept_.insert({t.key.layer, t.key.expert, t.source_version});
    room_ -= t.bytes;
  }

  /// Starts transfers for which a reader or a stream is free.
  void Start(int64_t at) {
    while (!unread_.empty() && static_cast<int>(reading_.size()) < readers_) {
      Reading r{unread_.Pop()};
      Keep(r.job.transfer);
      r.started_ns = std::max(at, r.job.submitted_ns);
      r.finished_ns =
          r.started_ns + HardwareProfile::WholeNs(1e9 * static_cast<double>(r.job.transfer.bytes) /
                                                  profile_->file_bytes_per_s);
      reading_.push_back(r);
    }
    while (static_cast<int>(active_.size()) < profile_->link_streams) {
      Active a;
      if (!read_.empty()) {
        a.job = read_.front().job;
        a.started_ns = read_.front().started_ns;
        a.flows_ns = std::max(at, read_.front().finished_ns);
        read_.erase(read_.begin());
      } else if (!waiting_.empty()) {
        a.job = waiting_.Pop();
        a.flows_ns = a.started_ns = std::max(at, a.job.submitted_ns);
      } else {
        break;
      }
      a.flows_ns += profile_->link_latency_ns;
      a.bytes = static_cast<double>(a.job.transfer.bytes);
      active_.push_back(a);
    }
    Share(at);
  }

  /// Shares the link's rate evenly between streams; none exceeds the rate of a stream.
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

  /// Completes all transfers and reads that end by `now`.
  void Run(int64_t now) {
    while (std::min(NextEnd(active_), NextEnd(reading_)) <= now) {
      if (NextEnd(reading_) < NextEnd(active_)) {
        const auto first = Earliest(reading_);
        read_.push_back(*first);
        reading_.erase(first);
        Start(read_.back().finished_ns);
        continue;
      }
      const auto first = Earliest(active_);
      finished_.reserve(finished_.size() + 1);  // nothing fails once it has left active_
      const Active a = *first;
      active_.erase(first);
      const Transfer& t = a.job.transfer;
      finished_.push_back(
          {t.key, t.version, Read(t), t.bytes, a.job.submitted_ns, a.started_ns, a.finished_ns});
      Start(a.finished_ns);
    }
  }

  /// Appends the transfers whose arrival has been seen by now; false when there are none.
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
  const bool has_all_;                 // all records are in RAM
  std::set<std::array<int, 3>> kept_;  // layer, expert, source version
  int64_t room_ = 0;
  int readers_ = 0;
  WaitingTransfers unread_;             // records that are not in RAM
  std::vector<Reading> reading_;        // at most readers_
  std::vector<Reading> read_;           // wait for the link, ahead of waiting_
  WaitingTransfers waiting_;            // records in RAM that wait for the link
  std::vector<Active> active_;          // at most link_streams
  std::vector<TransferDone> finished_;  // in the order of finishing, not delivered
};

}  // namespace

std::unique_ptr<TransferQueue> MakeVirtualLink(const ExpertSource* source, VirtualClock* clock,
                                               const HardwareProfile* profile,
                                               std::optional<RamTier> ram) {
  return std::make_unique<VirtualLink>(source, clock, profile, std::move(ram));
}

}  // namespace moert
