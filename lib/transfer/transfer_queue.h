// TransferQueue: the link between the slow and the fast tier. Demand goes ahead of prefetch,
// prefetch ahead of background; within a class first come, first served. A transfer that has
// started is never interrupted.
//
// There are two kinds. On the wall clock I/O threads read from the source. On the virtual clock a
// simulated link carries as many transfers at a time as the profile says, in logical time, and the
// bytes are read when a transfer completes.
#ifndef MOERT_LIB_TRANSFER_TRANSFER_QUEUE_H_
#define MOERT_LIB_TRANSFER_TRANSFER_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "moert/policy.h"
#include "moert/source/expert_source.h"
#include "moert/tools/profile.h"
#include "transfer/link_pacer.h"

namespace moert {

/// The reason for a transfer, most urgent first.
enum class LoadReason : int32_t { kDemand = 0, kPrefetch = 1, kBackground = 2 };

struct Transfer {
  ExpertKey key;
  int version = 0;         // the store's index, returned with the result
  int source_version = 0;  // the version of the source that is read
  LoadReason reason = LoadReason::kDemand;
  absl::Span<std::byte> dst;
  int64_t bytes = 0;  // of the record
};

struct TransferDone {
  ExpertKey key;
  int version = 0;
  absl::Status status;
  int64_t bytes = 0;
  int64_t submitted_ns = 0;  // the engine's clock
  int64_t started_ns = 0;
  int64_t finished_ns = 0;
};

/// One caller thread (under the engine's lock).
class TransferQueue {
 public:
  virtual ~TransferQueue() = default;
  /// May throw std::bad_alloc, and then has not taken the transfer.
  virtual void Submit(const Transfer& transfer) = 0;
  /// Moves a waiting transfer into a higher class; no effect once it has started.
  virtual void Raise(ExpertKey key, int version, LoadReason reason) = 0;
  /// True when the transfer had not started: it is forgotten and its destination untouched.
  virtual bool Cancel(ExpertKey key, int version) = 0;
  /// Appends the transfers that have finished by now.
  virtual void Poll(std::vector<TransferDone>* done) = 0;
  /// Blocks until a transfer has finished (advancing a virtual clock) and appends it. False when no
  /// transfer is in flight.
  virtual bool Wait(std::vector<TransferDone>* done) = 0;
};

/// Transfers that have not started, in the order of service.
class WaitingTransfers {
 public:
  struct Job {
    Transfer transfer;
    int64_t submitted_ns = 0;
  };

  void Push(const Transfer& transfer, int64_t now_ns) {
    classes_[Class(transfer.reason)].push_back({transfer, now_ns});
  }
  bool empty() const {
    return std::all_of(std::begin(classes_), std::end(classes_),
                       [](const auto& jobs) { return jobs.empty(); });
  }
  /// The next to serve. Not empty.
  Job Pop() {
    auto& jobs = *std::find_if(std::begin(classes_), std::end(classes_),
                               [](const auto& c) { return !c.empty(); });
    Job job = jobs.front();
    jobs.pop_front();
    return job;
  }
  std::optional<Job> Remove(ExpertKey key, int version) {
    for (auto& jobs : classes_) {
      auto it = std::find_if(jobs.begin(), jobs.end(), [&](const Job& job) {
        return job.transfer.key == key && job.transfer.version == version;
      });
      if (it == jobs.end()) continue;
      Job job = *it;
      jobs.erase(it);
      return job;
    }
    return std::nullopt;
  }
  void Raise(ExpertKey key, int version, LoadReason reason) {
    for (int c = Class(reason) + 1; c < kClasses; ++c) {
      for (size_t i = 0; i < classes_[c].size(); ++i) {
        Job job = classes_[c][i];
        if (!(job.transfer.key == key && job.transfer.version == version)) continue;
        job.transfer.reason = reason;
        classes_[Class(reason)].push_back(job);  // first, as it may throw
        classes_[c].erase(classes_[c].begin() + static_cast<ptrdiff_t>(i));
        return;
      }
    }
  }

 private:
  static int Class(LoadReason reason) { return static_cast<int>(reason); }
  static constexpr int kClasses = 3;
  std::deque<Job> classes_[kClasses];
};

/// A queue with `threads` readers. With a pacer they take turns on its link, and a more urgent
/// transfer submitted before a turn begins still goes first. ResourceExhausted when a thread cannot
/// be started.
absl::StatusOr<std::unique_ptr<TransferQueue>> MakeReaderQueue(const ExpertSource* source,
                                                               const Clock* clock, int threads,
                                                               std::shared_ptr<LinkPacer> pacer);

/// Simulated RAM below a logical link that does not hold all records. Readers bring missing records
/// from a file, at the profile's rate, while the link carries others. Records stay while there is
/// room.
struct RamTier {
  std::vector<ExpertKey> kept = {};  // records in RAM from the start, of source version 0
  int64_t room = 0;                  // bytes left for others
  int readers = 1;                   // readers that work at once
};

/// A logical link with the profile's rate and latency. source null: nothing is read. Without `ram`
/// all records are in RAM.
std::unique_ptr<TransferQueue> MakeVirtualLink(const ExpertSource* source, VirtualClock* clock,
                                               const HardwareProfile* profile,
                                               std::optional<RamTier> ram = std::nullopt);

}  // namespace moert

#endif  // MOERT_LIB_TRANSFER_TRANSFER_QUEUE_H_
