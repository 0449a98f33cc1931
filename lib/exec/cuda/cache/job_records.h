// The records of a job for the CPU, in host memory: those that are kept in pinned memory, and those
// that are read for it, some at a time.
#ifndef MOERT_LIB_EXEC_CUDA_CACHE_JOB_RECORDS_H_
#define MOERT_LIB_EXEC_CUDA_CACHE_JOB_RECORDS_H_

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "exec/cuda/cuda_api.h"
#include "exec/cuda/memory/device_transfers.h"
#include "kernels/cuda/cache/cpu_mailbox.h"
#include "moert/thread_pool.h"
#include "source/read_records.h"

namespace moert::cuda {

/// By the thread that answers jobs; read_ns and TakeRead by any.
class JobRecords {
 public:
  /// All borrowed.
  JobRecords(DeviceSource* records, int version, ThreadPool* pool)
      : records_(records), version_(version), pool_(pool) {}

  /// FailedPrecondition where some record is not kept and none may be read.
  absl::Status Check() const;

  /// Finds the records of the first experts of a job, as many as there is room for, at least one.
  /// Those that are not kept are read, or found where the source has them. *found: where they lie,
  /// until the next call; null: in parts, ExpertSource::HostPart.
  absl::Status Find(int layer, absl::Span<const CpuJobExpert> experts,
                    std::vector<const std::byte*>* found);
  /// Behind a job: nobody reads what was found. Returns what the reading took.
  int64_t EndJob();

  /// The time that the reading of a record takes, by the last ones that were not kept.
  int64_t read_ns() const { return read_ns_.load(std::memory_order_relaxed); }
  /// Bytes read since this was last asked.
  int64_t TakeReadBytes() { return bytes_.exchange(0, std::memory_order_relaxed); }

 private:
  /// Where a record that is not there is read; null: there is no room now.
  std::byte* Room(ExpertKey key, std::byte* place);
  absl::Status ReadAll();
  void Measure(int64_t took_ns);

  DeviceSource* const records_;
  const int version_;
  ThreadPool* const pool_;
  std::vector<Buffer> scratch_;  // pageable, for what finds no place
  size_t scratch_used_ = 0;
  std::vector<RecordRead> reads_;
  int64_t in_place_ = 0;  // beside these: multiplied where the source has them
  std::vector<absl::Status> done_;
  int64_t job_ns_ = 0;
  std::atomic<int64_t> read_ns_{0}, bytes_{0};
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_CACHE_JOB_RECORDS_H_
