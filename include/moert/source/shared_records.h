// One copy of the experts in host memory for all processes of a machine (one per GPU, say): a
// source whose records lie in memory that the processes share.
#ifndef MOERT_SOURCE_SHARED_RECORDS_H_
#define MOERT_SOURCE_SHARED_RECORDS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "moert/source/expert_source.h"

namespace moert {

struct SharedRecordsOptions {
  /// The name of the memory, the same in all processes that share it and in no others of this user:
  /// letters, digits, '-', '_' and '.'.
  std::string name = {};
  /// The number of processes that share it. The name is removed once all of them have attached, so
  /// that nothing is left behind however they end. Processes that die earlier leave a file, which
  /// the next processes of that name take over and fill anew.
  int processes = 2;
  /// A memory file system with room for all records.
  std::string directory = "/dev/shm";
  /// How long a process waits for the one that fills the memory.
  int64_t timeout_ns = int64_t{600} * 1'000'000'000;
  /// Page-locks the memory for the devices of this process. Without CUDA, or if the system refuses,
  /// records are copied from it as from any source.
  bool pin = true;
  /// Threads that read; 0: one a core.
  int threads = 0;
  /// Called on the caller's thread after each layer of a version, and while another process fills
  /// the memory. If it returns false, ShareRecords gives up with Cancelled. May be null.
  std::function<bool(int64_t done_bytes, int64_t total_bytes)> progress = {};
};

/// One of the processes reads all records of `source`, once; the others wait for it, and if it
/// fails or dies another one takes over. All processes must have the same model: other sizes, or
/// other first records of a layer, are refused with FailedPrecondition. ResourceExhausted if there
/// is not enough memory, DeadlineExceeded, Cancelled, InvalidArgument, or the error of a read.
absl::StatusOr<std::shared_ptr<const ExpertSource>> ShareRecords(
    std::shared_ptr<const ExpertSource> source, const SharedRecordsOptions& options);

}  // namespace moert

#endif  // MOERT_SOURCE_SHARED_RECORDS_H_
